package compat

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/format/trace"
	"lighter/hub"
	"lighter/test/testkit/example"
	tars "lighter/test/testkit/tarball"
	"lighter/wire"
	"lighter/wire/client"
)

// What the example of a hub has: an image of two layers, and a recording of its start.
const (
	imageName = "app:1"
	inImage   = "usr/bin/app"
)

// noise returns n bytes that do not compress, the same each time.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

var quiet = slog.New(slog.DiscardHandler)

// hubRoot returns the directory of a hub as an earlier version left it.
func hubRoot(t *testing.T) string {
	return example.StoredDir(t, "hub-1.tar.zst", func() string {
		root := t.TempDir()
		url, stop := startHub(t, root)
		push(t, url, imageName, layers...)
		c := newClient(t, url)
		last, err := c.Add(t.Context(), wire.Add{Name: imageName}, func(wire.Progress) {})
		noError(t, err)
		noError(t, c.SendTrace(t.Context(), id(last.Images[0].Tree), started))
		until(t, "startup packs", func() bool {
			starts, err := c.Starts(t.Context(), imageName, "")
			return err == nil && len(starts) == 1 && len(starts[0].Packs) > 0
		})
		stop()
		return root
	})
}

// started is what a start of the image has read.
var started = trace.Trace{Reads: []trace.Read{{Length: 4096}, {At: time.Millisecond, Offset: 4096, Length: 4096}}}

// startHub runs a hub until the test ends or stop is called.
func startHub(t *testing.T, root string, change ...func(*hub.Config)) (url string, stop func()) {
	t.Helper()
	c := hub.DefaultConfig()
	c.Root, c.Platforms = root, []string{"linux/amd64"}
	for _, f := range change {
		f(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h, err := hub.Open(ctx, c, quiet)
	noError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	done := make(chan error, 1)
	go func() { done <- errors.Join(h.Serve(ctx, listener), h.Close()) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the hub ended with error %v", err)
		}
	}
	t.Cleanup(stop)
	return "http://" + listener.Addr().String(), stop
}

func newClient(t *testing.T, url string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{URL: url})
	noError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// layers has the tar streams of the image's layers.
var layers = [][]byte{
	tars.Of(tars.Dir("usr"), tars.Dir("usr/bin"), tars.File(inImage, string(noise(3000)), tars.Mode(0o755)),
		tars.File("etc/small", "small"), tars.Symlink("link", inImage)),
	tars.Of(tars.Whiteout("etc/small"), tars.File("etc/large", string(noise(6000)[3000:]))),
}

// push pushes an image.
func push(t *testing.T, url, as string, tars ...[]byte) {
	t.Helper()
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{OS: "linux", Architecture: "amd64"})
	noError(t, err)
	for _, blob := range tars {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(blob)), nil
		}, tarball.WithMediaType(types.OCILayer))
		noError(t, err)
		image, err = mutate.AppendLayers(image, layer)
		noError(t, err)
	}
	to, err := name.ParseReference(strings.TrimPrefix(url, "http://")+"/"+as, name.Insecure)
	noError(t, err)
	noError(t, remote.Write(to, image))
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 600 {
		if holds() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("%s: not after %v", what, 12*time.Second)
}

// TestHubRoot opens what an earlier hub has left: its key, catalog, objects and registry.
func TestHubRoot(t *testing.T) {
	url, _ := startHub(t, hubRoot(t))
	speak(t, url)
	// A new image on old layers.
	push(t, url, "app:2", append(slices.Clone(layers), tars.Of(tars.File("etc/new", string(noise(2000)))))...)
	c := newClient(t, url)
	for _, name := range []string{imageName, "app:2"} {
		last, err := c.Add(t.Context(), wire.Add{Name: name}, func(wire.Progress) {})
		noError(t, err)
		equal(t, "state of "+name, last.Images[0].State, wire.StateReady)
		last, err = c.Verify(t.Context(), name, func(wire.Progress) {})
		noError(t, err)
		equal(t, "problems of "+name, last.Problems, []string(nil))
	}
}
