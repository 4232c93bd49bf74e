package main

import (
	"path/filepath"
	"testing"

	"lighter/hub"
)

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
