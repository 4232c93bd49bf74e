package pullthrough

import (
	"net/http/httptest"
	"testing"
)

// A request is about the registry that it names: with ns, by the name of the hub that Docker knows,
// or by its path. Only configured registries and repositories are read for clients.
func TestRoutes(t *testing.T) {
	t.Parallel()
	s := New(t.Context(), Config{DockerNames: []string{"docker-mirror.example.org"},
		OwnHosts: []string{"hub.example.org"}, Registries: []Registry{{Host: "docker.io", Readers: Anyone},
			{Host: "registry.example.org:5000", Readers: Anyone, Repositories: []string{"team/**"}}}})
	const refused, own = "refused", "the hub's own registry"
	for _, c := range []struct{ host, path, want string }{
		// Docker's registry-mirrors do not say which registry they mean.
		{"docker-mirror.example.org", "/v2/library/debian/manifests/12", "docker.io/library/debian"},
		{"docker-mirror.example.org:7070", "/v2/debian/manifests/12", "docker.io/library/debian"},
		{"Docker-Mirror.Example.Org", "/v2/team/app/blobs/sha256:1", "docker.io/team/app"},
		{"hub.example.org", "/v2/library/debian/manifests/12", own},
		{"hub.example.org", "/v2/debian/manifests/12", own},

		{"hub.example.org", "/v2/library/debian/manifests/12?ns=docker.io", "docker.io/library/debian"},
		{"hub.example.org", "/v2/debian/manifests/12?ns=registry-1.docker.io", "docker.io/library/debian"},
		{"hub.example.org", "/v2/team/app/manifests/1?ns=registry.example.org:5000",
			"registry.example.org:5000/team/app"},
		{"hub.example.org", "/v2/other/app/manifests/1?ns=registry.example.org:5000", refused},
		{"hub.example.org", "/v2/team/app/manifests/1?ns=other.example.org", refused},
		{"hub.example.org", "/v2/team/app/manifests/1?ns=hub.example.org", own},
		{"docker-mirror.example.org", "/v2/team/app/manifests/1?ns=registry.example.org:5000",
			"registry.example.org:5000/team/app"},

		// Podman and CRI-O put the registry into the path.
		{"hub.example.org", "/v2/docker.io/library/debian/manifests/12", "docker.io/library/debian"},
		{"hub.example.org", "/v2/registry.example.org_5000/team/app/manifests/1",
			"registry.example.org:5000/team/app"},
		{"hub.example.org", "/v2/registry.example.org_5000/other/app/manifests/1", own},
		{"hub.example.org", "/v2/", own},
		{"docker-mirror.example.org", "/v2/", own},
	} {
		req := httptest.NewRequest("GET", c.path, nil)
		req.Host = c.host
		r, found := s.find(req)
		got := own
		switch {
		case !found:
			got = refused
		case r != nil:
			got = r.repository
		}
		if got != c.want {
			t.Errorf("GET %s of %s is about %s, want %s", c.path, c.host, got, c.want)
		}
	}
	push := httptest.NewRequest("PUT", "/v2/library/debian/manifests/12", nil)
	push.Host = "docker-mirror.example.org"
	if r, found := s.find(push); r != nil || !found {
		t.Errorf("a push is about %+v, %t; want the hub's own registry", r, found)
	}
}
