package containerd

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/services/content/contentserver"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
)

// inNamespace is a content store that shows its blobs in one namespace only, as containerd does.
type inNamespace struct{ content.Store }

func (s inNamespace) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if ns, err := namespaces.NamespaceRequired(ctx); err != nil || ns != "pulls" {
		d = digest.FromString("another namespace")
	}
	return s.Store.Info(ctx, d)
}

// Contents has what a namespace has, verified, up to a limit.
func TestContents(t *testing.T) {
	dir := t.TempDir()
	store, err := local.NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	contentapi.RegisterContentServer(server, contentserver.New(inNamespace{store}))
	go func() { _ = server.Serve(listener) }() // Stop ends it
	t.Cleanup(server.Stop)
	add := func(name digest.Digest, text []byte) {
		t.Helper()
		d := v1.Descriptor{Digest: name, Size: int64(len(text))}
		if err := content.WriteBlob(t.Context(), store, name.Encoded(), bytes.NewReader(text), d); err != nil {
			t.Fatal(err)
		}
	}
	text := bytes.Repeat([]byte("manifest"), 100_000) // more than one message
	whole := digest.FromBytes(text)
	add(whole, text)
	c, err := OpenContents(socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		namespace string
		which     digest.Digest
		limit     int64
		want      string
	}{
		{"pulls", whole, int64(len(text)), ""},
		{"pulls", whole, int64(len(text)) - 1, "more than the limit"},
		{"others", whole, int64(len(text)), "not found"},
		{"pulls", digest.FromString("no such blob"), 100, "not found"},
		{"pulls", "no digest", 100, "invalid checksum digest format"},
	} {
		got, err := c.Read(t.Context(), test.namespace, test.which, test.limit)
		if test.want == "" && (err != nil || !bytes.Equal(got, text)) {
			t.Errorf("got %d bytes, error %v, want %d bytes", len(got), err, len(text))
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s in %s: error %v, want one with %q", test.which, test.namespace, err, test.want)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(t.Context(), "pulls", whole, 100); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("after Close: error %v, want one that names the socket", err)
	}
}

// Damaged content is refused.
func TestDamagedContents(t *testing.T) {
	text := []byte("manifest")
	c := &Contents{store: provider(text)}
	if _, err := c.Read(t.Context(), "pulls", digest.FromString("another"), 100); err == nil ||
		!strings.Contains(err.Error(), "its digest is "+digest.FromBytes(text).String()) {
		t.Errorf("error %v, want one about the digest", err)
	}
}

// provider has the same content under all digests.
type provider []byte

func (p provider) ReaderAt(context.Context, v1.Descriptor) (content.ReaderAt, error) {
	return readerAt{bytes.NewReader(p)}, nil
}

type readerAt struct{ *bytes.Reader }

func (readerAt) Close() error { return nil }
