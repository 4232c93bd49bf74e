package many

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/trace"
	"lighter/hub"
	"lighter/store/registry"
	"lighter/test/testkit/layout"
	"lighter/wire"
	"lighter/wire/client"
)

// startHub starts a hub in this process, with an image of two layers, and returns a plan for nodes
// that start the image.
func startHub(t *testing.T) Plan {
	t.Helper()
	c := hub.DefaultConfig()
	c.Root = t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	h, err := hub.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(h.Serve(ctx, listener), h.Close()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	p := Plan{Hub: "http://" + listener.Addr().String(), Nodes: 3, Dir: t.TempDir(), Cache: 64 << 20}
	client, err := client.New(client.Options{URL: p.Hub})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := client.Keys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Key = index.FormatKey(keys[0])
	push(t, client, makeImage(t))
	images, err := client.Inspect(ctx, "image:latest")
	if err != nil || len(images) != 1 {
		t.Fatalf("%d images: %v", len(images), err)
	}
	for _, l := range images[0].Layers {
		p.Chains = append(p.Chains, l.Chain)
	}
	if p.Tree, err = chunk.ParseID(images[0].Tree); err != nil {
		t.Fatal(err)
	}
	return p
}

// makeImage makes an OCI layout with a large file in each of two layers.
func makeImage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	last := filepath.Join(dir, "none")
	err := os.MkdirAll(filepath.Join(last, "blobs/sha256"), 0o755)
	if err == nil {
		err = layout.Write(last, ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: ocispec.MediaTypeImageManifest},
			ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}})
	}
	for i, name := range []string{"lower", "upper"} {
		content := make([]byte, 1<<20)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(content)
		to := filepath.Join(dir, name)
		if err == nil {
			err = layout.Extend(last, to, func(l *layout.Layer) error { return l.File(name, content) })
		}
		last = to
	}
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func push(t *testing.T, c *client.Client, dir string) {
	t.Helper()
	local, err := registry.OpenLocal("oci:" + dir + ":latest")
	if err != nil {
		t.Fatal(err)
	}
	to := registry.Target{Repository: "image"}
	to.Host, to.PlainHTTP, to.Transport = c.Registry()
	if err := local.Push(t.Context(), to, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	digest, err := local.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Add(t.Context(), wire.Add{Name: "image:latest", Digest: digest},
		func(wire.Progress) {}); err != nil {
		t.Fatal(err)
	}
}

func simulate(t *testing.T, p Plan) Outcome {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := p.write(file); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Simulate(t.Context(), file, &out); err != nil {
		t.Fatal(err)
	}
	var o Outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// Each node looks up the image, and fetches the chunks of the trace independently.
func TestNodesStartAnImage(t *testing.T) {
	p := startHub(t)
	p.Trace = trace.Trace{Tree: p.Tree, Reads: []trace.Read{{Offset: 1 << 20, Length: 1 << 20},
		{At: time.Millisecond, Offset: 0, Length: 4096}}}.Encode()
	o := simulate(t, p)
	if len(o.Starts) != p.Nodes || len(o.Reads) != 9*p.Nodes {
		t.Fatalf("%d starts and %d reads", len(o.Starts), len(o.Reads))
	}
	for i, s := range o.Starts {
		if s.Error != "" || s.Refused != 0 || s.Reads != 9 || s.Failed != 0 {
			t.Errorf("node %d: %+v", i, s)
		}
		// The node fetches one incompressible file of 1 MiB and a chunk of the other one, as units.
		// It makes three more requests: for the lookup, the index and the locations.
		if s.Bytes < 1<<20 || s.Units == 0 || s.Requests != s.Units+3 {
			t.Errorf("node %d fetched %d bytes, %d units in %d requests", i, s.Bytes, s.Units, s.Requests)
		}
		if s.Pull <= 0 || s.Done < s.Pull {
			t.Errorf("node %d: pull %v s, total %v s", i, s.Pull, s.Done)
		}
	}
}

// A pull fails if a real node would have unpacked the image, because the hub does not know its
// chain.
func TestPullOfUnknownImageFails(t *testing.T) {
	p := startHub(t)
	p.Chains = []string{"sha256:" + strings.Repeat("0", 64)}
	n, err := newNode(p, "node", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	if err := n.pull(t.Context()); err == nil || !strings.Contains(err.Error(), "would be unpacked") {
		t.Errorf("pull of an unknown image: %v", err)
	}
}
