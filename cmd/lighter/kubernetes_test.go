package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lighter/cmd/command"
	"lighter/hub"
)

// The pod that installs Lighter reads the configuration, and leaves to the machine what depends on
// the machine's files: certificates, groups, and the keys of a hub that the machine has learned.
func TestConfigurationForAnotherMachine(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for text, want := range map[string]struct {
		code int
		text string
	}{
		"hubs = ['https://hub.example.org']\n":                         {command.ExitFailed, "no pod of Kubernetes"},
		"hubs = ['https://hub.example.org']\nca_file = '/no/ca.pem'\n": {command.ExitFailed, "no pod of Kubernetes"},
		"hubs = [\n":        {command.ExitUsage, "configuration "},
		"no_such_key = 1\n": {command.ExitUsage, "no_such_key"},
	} {
		file := filepath.Join(t.TempDir(), "node.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := lighter(t, "install", "kubernetes", "--node-name", "n", "--config", file)
		if code != want.code || !strings.Contains(stderr, want.text) {
			t.Errorf("%q: exit %d, %q; want exit %d, %q", text, code, stderr, want.code, want.text)
		}
	}
}

// The configurations in the manifests of a hub in Kubernetes are valid.
func TestConfigurationsForKubernetes(t *testing.T) {
	files, err := filepath.Glob("../../deploy/kubernetes/hub/*/hub.toml")
	if err != nil || len(files) != 2 {
		t.Fatalf("files %q, %v, want two", files, err)
	}
	for _, file := range files {
		c := hub.DefaultConfig()
		if err := loadConfig(hubCommand(), file, &c); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
