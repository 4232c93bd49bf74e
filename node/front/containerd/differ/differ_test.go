package differ

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const testDir = "/node/snapshots"

var discard = slog.New(slog.DiscardHandler)

// over returns an overlay mount with options that are separated by spaces.
func over(options string) []mount.Mount {
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: strings.Fields(options)}}
}

func bound(source string, options ...string) []mount.Mount {
	return []mount.Mount{{Type: "bind", Source: source, Options: options}}
}

// The top directory is found for each kind of mount that the snapshotter makes.
func TestTopOf(t *testing.T) {
	d := &Differ{dir: testDir}
	const (
		tree   = "/node/mounts/tree"
		two    = testDir + "/2/fs"
		active = "index=off workdir=" + testDir + "/9/work upperdir=" + testDir + "/9/fs lowerdir="
		view   = "index=off lowerdir=" + testDir + "/9/fs:"
	)
	for what, c := range map[string]struct{ lower, upper []mount.Mount }{
		"container of a tree":             {over("lowerdir=" + tree + ":" + testDir + "/empty"), over(active + tree)},
		"container of a layer":            {bound(two, "ro", "rbind"), over(active + two)},
		"container of a layer on a tree":  {over("lowerdir=" + two + ":" + tree), over(active + two + ":" + tree)},
		"committed on a tree":             {over("lowerdir=" + tree + ":" + testDir + "/empty"), over(view + tree)},
		"committed on a layer and a tree": {over("lowerdir=" + two + ":" + tree), over(view + two + ":" + tree)},
		"volatile":                        {over("lowerdir=" + tree), over("volatile " + active + tree)},
	} {
		top, err := d.topOf(c.lower, c.upper)
		if want := (topDir{path: testDir + "/9/fs", xattrs: "trusted.overlay."}); err != nil || top != want {
			t.Errorf("%s: got %+v, %v; want %+v", what, top, err, want)
		}
	}
	top, err := d.topOf(over("userxattr lowerdir="+tree), over("userxattr "+active+tree))
	if err != nil || top.xattrs != "user.overlay." {
		t.Errorf("with userxattr: got %+v, %v; want the xattrs user.overlay", top, err)
	}
}

// Mounts whose difference is more, or something else, than a top directory are refused.
func TestForeignMountsAreRefused(t *testing.T) {
	d := &Differ{dir: testDir}
	const (
		tree   = "/node/mounts/tree"
		active = "workdir=" + testDir + "/9/work upperdir=" + testDir + "/9/fs lowerdir="
	)
	parent := over("lowerdir=" + tree)
	for what, c := range map[string]struct{ lower, upper []mount.Mount }{
		"no mounts":           {nil, nil},
		"no parent":           {nil, over(active + tree)},
		"two mounts":          {parent, append(over(active+tree), over(active+tree)...)},
		"another parent":      {over("lowerdir=/node/mounts/other"), over(active + tree)},
		"an ancestor":         {parent, over(active + testDir + "/8/fs:" + tree)},
		"a lazy layer":        {parent, over("lowerdir=/node/mounts/upper:" + testDir + "/empty")},
		"a bind mount":        {bound(tree, "ro"), bound(testDir+"/9/fs", "rw")},
		"another snapshotter": {parent, over("upperdir=/overlayfs/9/fs lowerdir=" + tree)},
		"a path below a name": {parent, over("upperdir=" + testDir + "/9/x/fs lowerdir=" + tree)},
		"ID-mapped snapshot":  {parent, over("uidmap=0:100000:65536 gidmap=0:100000:65536 " + active + tree)},
		"ID-mapped parent":    {over("gidmap=0:100000:65536 lowerdir=" + tree), over(active + tree)},
		"a writable parent": {over("upperdir=" + testDir + "/8/fs lowerdir=" + tree),
			over(active + testDir + "/8/fs:" + tree)},
		"an EROFS mount": {[]mount.Mount{{Type: "erofs", Source: "/x"}}, over(active + tree)},
	} {
		if top, err := d.topOf(c.lower, c.upper); !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: got %+v, %v; want that it is not implemented", what, top, err)
		}
	}
}

// Media types that containerd's differ does not know are refused. Without one, the layer is
// compressed with gzip.
func TestFormatOf(t *testing.T) {
	f, err := formatOf([]diff.Opt{diff.WithReference("r")})
	if err != nil || f.MediaType != ocispec.MediaTypeImageLayerGzip || f.Reference != "r" {
		t.Errorf("without a media type: got %+v, %v; want gzip and reference r", f, err)
	}
	if _, err := formatOf([]diff.Opt{diff.WithMediaType("text/plain")}); !errdefs.IsNotImplemented(err) {
		t.Errorf("text/plain: got %v, want that it is not implemented", err)
	}
}

// Without a socket of containerd, or if nothing listens there, the differ refuses requests.
func TestContainerdIsNotThere(t *testing.T) {
	for _, socket := range []string{"", t.TempDir() + "/no.sock"} {
		d, err := New(Config{Snapshots: testDir, Socket: socket, Log: discard})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		d.dir = dir
		if err := os.MkdirAll(dir+"/1/fs", 0o700); err != nil {
			t.Fatal(err)
		}
		ctx := namespaces.WithNamespace(t.Context(), "test")
		_, err = d.Compare(ctx, over("lowerdir=/x"), over("upperdir="+dir+"/1/fs lowerdir=/x"))
		if !errdefs.IsNotImplemented(err) {
			t.Errorf("socket %q: got %v, want that it is not implemented", socket, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
