package main

import (
	"strings"
	"testing"

	"lighter/cmd/command"
	"lighter/test/testkit/printed"
)

// Wrong arguments lead to exit code 2 and one line that says what to do.
func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{
		{"--merge"}, {"x"}, {"--links", "none"}, {"--only", "base/none"}, {"--snapshotters", "none"},
		{"--config", "/no/such/file"},
		{"figures", "--only", "none"}, {"figures", "--rounds", "0"}, {"demo", "x"}, {"many", "--positions", "none"},
		{"hubs", "--only", "none"}, {"hubs", "--rounds", "0"}, {"nodes"},
		{"demo", "--lighter", "/no/such/file"},
	} {
		var code int
		_, stderr := printed.By(t, func() {
			code = command.Run(t.Context(), rootCommand(), args, func(error) int { return command.ExitFailed })
		})
		if code != command.ExitUsage || !strings.HasPrefix(stderr, "lighter-bench: ") ||
			strings.Count(stderr, "\n") != 1 {
			t.Errorf("lighter-bench %s: exit %d, %q; want a usage error in one line",
				strings.Join(args, " "), code, stderr)
		}
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	for _, cmd := range append(rootCommand().Commands(), rootCommand()) {
		if cmd.Short == "" || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s has no help with an example", cmd.CommandPath())
		}
	}
}
