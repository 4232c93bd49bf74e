package deploy

import (
	"strings"
	"testing"
)

// The units contain the paths that the installer replaces.
func TestUnitsHavePaths(t *testing.T) {
	for text, paths := range map[string][]string{NodeUnit: {Program, NodeConfig}, HubUnit: {Program, HubConfig}} {
		for _, path := range paths {
			if !strings.Contains(text, path) {
				t.Errorf("the unit does not contain %s:\n%s", path, text)
			}
		}
	}
}
