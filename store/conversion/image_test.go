package conversion_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/format/chunk"
	"lighter/format/compress"
	"lighter/format/tree"
	"lighter/store/conversion"
	"lighter/store/registry"
	tars "lighter/test/testkit/tarball"
)

// layers are those of the image that is converted: one in gzip, one plain, one without entries, and
// one with whiteouts.
func layers() [][]byte {
	long := strings.Repeat("long-name/", 12)
	return [][]byte{
		tars.Of(tars.Dir("etc", tars.Mode(0o700), tars.Owner(3, 4)), tars.File("etc/gone", "x"), tars.Dir("opaque"),
			tars.File("opaque/hidden", "x"), tars.File("etc/replaced", strings.Repeat("old", 1000)),
			tars.File("usr/large", strings.Repeat("0123456789abcdef", 320_000), tars.Time(1_700_000_000, 123_456_789)),
			tars.Link("usr/hard", "usr/large", tars.Time(1_700_000_000, 123_456_789))),
		tars.Of(tars.File("usr/bin/first", "first\n", tars.Mode(0o4755), tars.Xattr("user.note", "a\x00b\xff")),
			tars.Symlink("usr/link", "../etc/replaced"), tars.Char("dev/null", 1, 3), tars.FIFO("dev/fifo"),
			tars.File(long+"name", "long"), tars.File("usr/empty", "")),
		tars.Of(),
		tars.Of(tars.Whiteout("etc/gone"), tars.Opaque("opaque"), tars.File("opaque/shown", "y"),
			tars.File("etc/replaced", "new")),
	}
}

// imageOf makes an image. change may change its config.
func imageOf(t testing.TB, layers [][]byte, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for n, archive := range layers {
		var layer v1.Layer = static.NewLayer(archive, types.OCIUncompressedLayer)
		if n%2 == 0 {
			var err error
			layer, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader(archive)), nil
			}, tarball.WithMediaType(types.OCILayer))
			if err != nil {
				t.Fatal(err)
			}
		}
		var err error
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer,
			History: v1.History{CreatedBy: "RUN <make> & test"},
			Annotations: map[string]string{"org.example.layer": fmt.Sprint(n),
				"io.github.containers.zstd-chunked.manifest-position": "1:2:3:1"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Cmd = "linux", "amd64", []string{"/usr/bin/first", "<&>"}
	if change != nil {
		change(config)
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return mutate.Annotations(image, map[string]string{"org.example.image": "yes",
		"com.amazon.soci.index-digest": "x"}).(v1.Image)
}

// stored writes an image or an index into a new OCI layout, and returns its directory.
func stored(t testing.TB, image mutate.Appendable) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "stored")
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image})
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	return dir
}

// opened opens a local image.
func opened(t testing.TB, source string) *registry.Source {
	t.Helper()
	local, err := registry.OpenLocal(source)
	if err != nil {
		t.Fatal(err)
	}
	return local.Source()
}

// convert converts an image.
func convert(ctx context.Context, from *registry.Source, platform, name string,
	o conversion.Options) (done conversion.Result, err error) {
	images, err := from.Originals(platform)
	if err != nil {
		return done, err
	}
	to, err := conversion.Open(ctx, name, false)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return conversion.Convert(ctx, images, to, o)
}

// converted converts an image, and reads the only image of the layout that it was written to.
func converted(t testing.TB, from *registry.Source, dir, tag string,
	o conversion.Options) (conversion.Result, v1.Image) {
	t.Helper()
	done, err := convert(t.Context(), from, "linux/amd64", strings.TrimSuffix("oci:"+dir+":"+tag, ":"), o)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := v1.NewHash(done.Digest)
	if err != nil {
		t.Fatal(err)
	}
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	image, err := root.Image(hash)
	if err != nil {
		t.Fatal(err)
	}
	return done, image
}

// tarOf returns a layer's tar, decompressed as containerd does.
func tarOf(t testing.TB, layer v1.Layer) []byte {
	t.Helper()
	stored, err := layer.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	plain, err := compress.Layer(stored)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	b, err := io.ReadAll(plain)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// scanned is the source of a tar's entries, without eStargz' own files.
type scanned struct{ rest []*tree.Entry }

func (s *scanned) Next() (*tree.Entry, error) {
	if len(s.rest) == 0 {
		return nil, io.EOF
	}
	e := s.rest[0]
	s.rest = s.rest[1:]
	return e, nil
}

// listing returns a line for each path of the tree of some layers, as overlayfs shows it.
func listing(t testing.TB, archives [][]byte) string {
	t.Helper()
	var sources []tree.LayerSource
	for _, archive := range archives {
		s := &scanned{}
		content := func(e *tree.Entry, r io.Reader) error {
			b, err := io.ReadAll(io.LimitReader(r, e.Size))
			if e.Size <= tree.InlineLimit {
				e.Content.Inline = b
			} else {
				e.Content.Extents = []tree.Extent{{ID: chunk.Sum(b), Length: e.Size}}
			}
			return err
		}
		if err := tree.Scan(bytes.NewReader(archive), tree.Limits{}, content, func(e *tree.Entry) error {
			if e.Name != "stargz.index.json" && !strings.HasSuffix(e.Name, ".landmark") {
				s.rest = append(s.rest, e)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		sources = append(sources, s)
	}
	tr, err := tree.Apply(t.Context(), sources, tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	names := map[*tree.Node]string{}
	var walk func(path string, n *tree.Node)
	walk = func(path string, n *tree.Node) {
		fmt.Fprintf(&lines, "%s %o %d:%d %d %v %#x %d %q %q %v %q %s\n", cmp.Or(path, "/"), n.Mode, n.UID, n.GID,
			n.Nlink, n.Mtime, n.Rdev, n.Size, n.Link, n.Xattrs, n.Content.Extents, n.Content.Inline, names[n])
		names[n] = path
		for _, child := range n.Children() {
			walk(path+"/"+child.Name, child.Node)
		}
	}
	walk("", tr.Root)
	return lines.String()
}

// decoded returns JSON as values.
func decoded(t testing.TB, b []byte) (value map[string]any) {
	t.Helper()
	if err := json.Unmarshal(b, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// files returns the names of the files below a directory.
func files(t testing.TB, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func reference(t *testing.T, ref string) name.Reference {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
