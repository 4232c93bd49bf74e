// Package referrers runs a registry that has the referrers API, unlike distribution: the one of
// go-containerregistry, in memory. It is for enclosed tests (site.Enclosed).
package referrers

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/test/testkit/site"
)

// Registry is a registry at HOST:PORT, on the hub's side of the link. It is served without TLS.
// site.RegistryTable allows nodes to read it.
type Registry struct{ Host string }

// Start runs a registry until the test ends.
func Start(tb testing.TB) Registry {
	tb.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		tb.Fatal(err)
	}
	handler := registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tb.Cleanup(func() {
		_ = server.Close() // open connections need no orderly end
		<-served
	})
	return Registry{fmt.Sprintf("%s:%d", site.HubIP, listener.Addr().(*net.TCPAddr).Port)}
}

// Push pushes an image as NAME:latest, and returns its reference.
func (r Registry) Push(tb testing.TB, image v1.Image, repository string) (ref string) {
	tb.Helper()
	ref = r.Host + "/" + repository + ":latest"
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.Write(to, image)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return ref
}
