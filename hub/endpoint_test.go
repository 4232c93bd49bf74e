package hub

import "testing"

func TestEndpointOf(t *testing.T) {
	for path, want := range map[string]string{
		"/lighter/1/default/trees/sha256:ab":     "trees",
		"/lighter/1/default/manifests/sha256:ab": "manifests",
		"/lighter/1/default/packs/ab/3":          "packs",
		"/lighter/1/default/nonsense":            "other",
		"/v2/a/manifests/1":                      "registry",
		"/metrics":                               "other",
	} {
		if got := endpointOf(path); got != want {
			t.Errorf("endpoint of %s: %s, want %s", path, got, want)
		}
	}
}
