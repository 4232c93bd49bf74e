//go:build runtimes

package docker

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/site"
)

// engine is a dockerd of the machine.
type engine struct{ *dockerd.Engine }

// newEngine configures a dockerd with its state in a directory. It is not started yet.
func newEngine(s *site.Site, dir, config string, args ...string) (engine, error) {
	e, err := dockerd.New(s, dir, config, args...)
	return engine{e}, err
}

// get decodes the answer to a GET.
func (e engine) get(t *testing.T, path string, into any) {
	t.Helper()
	if err := e.Ask(t.Context(), http.MethodGet, path, nil, into); err != nil {
		t.Fatal(err)
	}
}

// post sends a request, and decodes the answer.
func (e engine) post(t *testing.T, path string, body, into any) {
	t.Helper()
	if err := e.Ask(t.Context(), http.MethodPost, path, body, into); err != nil {
		t.Fatal(err)
	}
}

// progress does what Follow does.
func (e engine) progress(t *testing.T, path string, body any) string {
	t.Helper()
	text, err := e.Follow(t.Context(), path, body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// pull does what `docker pull` does.
func (e engine) pull(t *testing.T, ref string) {
	t.Helper()
	if err := e.Pull(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

// container is a container of an engine.
type container struct {
	engine
	id string
}

// create does what `docker create --network none` does. The test removes the container.
func (e engine) create(t *testing.T, image string, argv ...string) container {
	t.Helper()
	id, err := e.Create(t.Context(), image, argv...)
	if err != nil {
		t.Fatal(err)
	}
	c := container{e, id}
	t.Cleanup(func() { _ = c.remove(context.Background()) }) // the test may have removed it
	return c
}

// start does what `docker start` does.
func (c container) start(t *testing.T) {
	t.Helper()
	if err := c.StartContainer(t.Context(), c.id); err != nil {
		t.Fatal(err)
	}
}

// remove does what `docker rm --force` does.
func (c container) remove(ctx context.Context) error { return c.Remove(ctx, c.id) }

// run does what `docker run --rm --network none` does, and returns the output of the process. Its
// exit code has to be 0.
func (e engine) run(t *testing.T, image string, argv ...string) string {
	t.Helper()
	out, err := e.Run(t.Context(), image, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// exec does what `docker exec` does, and returns the output of the process.
func (c container) exec(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := c.Exec(t.Context(), c.id, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// prune does what `docker builder prune --all` and `docker image prune --all` do, and returns how
// many names and images it has removed.
func (e engine) prune(t *testing.T) int {
	t.Helper()
	if err := e.Ask(context.Background(), http.MethodPost, "/build/prune?all=1", nil, nil); err != nil {
		t.Error(err)
	}
	var pruned struct {
		ImagesDeleted []struct{ Untagged, Deleted string }
	}
	if err := e.Ask(context.Background(), http.MethodPost, "/images/prune?filters="+
		url.QueryEscape(`{"dangling":["false"]}`), nil, &pruned); err != nil {
		t.Error(err)
	}
	return len(pruned.ImagesDeleted)
}
