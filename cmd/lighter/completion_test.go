package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o default -F __start_lighter lighter",
		"zsh": "#compdef lighter", "fish": "complete -c lighter "} {
		if script := printedBy(t, "completion", shell); !strings.Contains(script, want) {
			t.Errorf("the script for %s has no %q", shell, want)
		}
	}
	check := exec.CommandContext(t.Context(), "bash", "-n")
	check.Stdin = strings.NewReader(printedBy(t, "completion", "bash"))
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("bash does not accept its script: %v: %s", err, out)
	}
	if words := printedBy(t, "__complete", "ver"); !strings.Contains(words, "verify\t") ||
		!strings.Contains(words, "version\t") {
		t.Errorf("the words that begin with ver are\n%s\nwant verify and version", words)
	}
}
