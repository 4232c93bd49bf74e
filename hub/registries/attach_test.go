package registries

import (
	"strings"
	"testing"

	"lighter/registries"
)

// Patterns are of the repositories of a table's registry.
func TestAttaches(t *testing.T) {
	none := open(t, Registry{Reached: registries.Registry{Host: "reg.example.org"}})
	if none.AttachesAny() {
		t.Error("without patterns, indexes are attached")
	}
	r := open(t, Registry{Reached: registries.Registry{Host: "reg.example.org"}, Attach: []string{"physics/**", "a"}},
		Registry{Reached: registries.Registry{Host: "*.example.net"}, Attach: []string{"*"}})
	for repository, want := range map[string]bool{"reg.example.org/physics/b/c": true, "reg.example.org/a": true,
		"reg.example.org/b": false, "reg.example.org/a/b": false, "x.example.net/b": true, "x.example.com/b": false,
		"a": false} {
		if got := r.Attaches(repository); got != want {
			t.Errorf("indexes are attached in %s: %t, want %t", repository, got, want)
		}
	}
	withHost := Registry{Reached: registries.Registry{Host: "reg.example.org"}, Attach: []string{"reg.example.org/a/*"}}
	if err := Check([]Registry{withHost}); err == nil || !strings.Contains(err.Error(), `write "a/*"`) {
		t.Errorf("a pattern with the host: %v", err)
	}
	bad := Registry{Reached: registries.Registry{Host: "reg.example.org"}, Attach: []string{"a", "[b"}}
	if err := Check([]Registry{bad}); err == nil || !strings.Contains(err.Error(), `attach: "[b" is no pattern`) {
		t.Errorf("a table with a bad pattern: %v", err)
	}
}
