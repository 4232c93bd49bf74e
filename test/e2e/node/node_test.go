//go:build e2e

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/node/control"
	"lighter/node/keeper"
	"lighter/node/report"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/site"
	"lighter/test/testkit/socketdir"
	tars "lighter/test/testkit/tarball"
)

// lighter is the path of the binary that `make build` makes.
var lighter string

// large is the content of a file that is stored in chunks, not in the metadata image.
var large = noise(5 << 20)

// noise returns n bytes of a fixed pseudorandom sequence, which cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// prepare starts a hub at the default address. All tests that start no site use it. The hub has the
// images tools:1 for linux/amd64, and both:1 for linux/amd64 and linux/arm64.
func prepare() (stop func() error, err error) {
	if lighter, err = site.Binary(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hub-")
	if err != nil {
		return nil, err
	}
	// A node that `lighter mount` starts has its root in ownRoots. The bind mount hides these roots
	// from the host.
	own := filepath.Join(dir, "own")
	if err := errors.Join(os.MkdirAll(ownRoots, 0o700), os.Mkdir(own, 0o700),
		syscall.Mount(own, ownRoots, "", syscall.MS_BIND, "")); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "hub.toml")
	if err := os.WriteFile(config, []byte("platforms = ['linux/amd64', 'linux/arm64']\n"), 0o600); err != nil {
		return nil, err
	}
	cmd, err := background(filepath.Join(dir, "hub.log"), "hub", "--config", config, "--root",
		filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()) }
	for name, platforms := range map[string][]string{"tools": {"linux/amd64"}, "both": {"linux/amd64", "linux/arm64"}} {
		if err := add(filepath.Join(dir, name), name+":1", platforms); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// add writes an image for each platform to an OCI layout in dir, and adds all of them to the hub
// under one name.
func add(dir, name string, platforms []string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range platforms {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return err
		}
		image, err := makeImage(p)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: p}})
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index,
		layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "1"})); err != nil {
		return err
	}
	for range 500 { // the hub may not listen yet
		var out []byte
		if out, err = exec.Command(lighter, "add", "oci:"+dir+":1", name).CombinedOutput(); err == nil {
			return nil
		}
		err = fmt.Errorf("add %s: %w: %s", name, err, out)
		if !bytes.Contains(out, []byte("refused")) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// makeImage makes an image of four files: text, which names the platform, large, the set-user-ID
// program id, and the device null.
func makeImage(p *v1.Platform) (v1.Image, error) {
	id, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		return nil, err
	}
	blob := tars.Of(tars.File("text", p.String()), tars.File("large", string(large)),
		tars.File("id", string(id), tars.Mode(0o4755)), tars.Char("null", 1, 3, tars.Mode(0o666)))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(blob)),
			nil
	},
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	return mutate.ConfigFile(image, config)
}

// background starts a lighter command whose output goes to a file.
func background(log string, args ...string) (*exec.Cmd, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.Command(lighter, args...)
	cmd.Stdout, cmd.Stderr = file, file
	return cmd, cmd.Start()
}

// daemon is a running node.
type daemon struct {
	t    *testing.T
	root string
	log  string    // path of the log of its last start
	args []string  // flags of its next start, after --root
	cmd  *exec.Cmd // nil after its end
}

// newRoot returns an unused path for a node's root. If anything is mounted below the root when the
// test ends, the test fails, and the mounts are detached.
func newRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(socketdir.New(t), "node")
	t.Cleanup(func() {
		for _, point := range mountsBelow(t, root) {
			t.Errorf("%s is still mounted", point)
			_ = syscall.Unmount(point, 2) // MNT_DETACH
		}
	})
	return root
}

// startNode runs a node until the test ends. It returns when the node is ready.
func startNode(t *testing.T, root string, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, root: root, log: filepath.Join(t.TempDir(), "node.log"), args: args}
	d.start()
	t.Cleanup(func() {
		if d.cmd != nil {
			d.end(syscall.SIGTERM)
		}
		if t.Failed() {
			t.Logf("the node's log:\n%s", d.said())
		}
	})
	return d
}

// start starts the node and waits until it is ready.
func (d *daemon) start() {
	d.t.Helper()
	var err error
	if d.cmd, err = background(d.log, append([]string{"node", "--root", d.root}, d.args...)...); err != nil {
		d.t.Fatal(err)
	}
	eventually.Holds(d.t, "the node's readiness", func() bool {
		if strings.Contains(d.said(), "lighter: ") {
			d.t.Fatalf("the node ended: %s", d.said())
		}
		return strings.Contains(d.said(), "node is ready")
	})
}

// said returns the log of the node's last start.
func (d *daemon) said() string {
	b, err := os.ReadFile(d.log)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// end ends the node by a signal and returns its exit code.
func (d *daemon) end(signal syscall.Signal) int {
	d.t.Helper()
	if err := d.cmd.Process.Signal(signal); err != nil {
		d.t.Fatal(err)
	}
	_ = d.cmd.Wait() // end returns the exit code
	code := d.cmd.ProcessState.ExitCode()
	d.cmd = nil
	if signal == syscall.SIGTERM && code != 0 {
		d.t.Errorf("the node ended with exit code %d, want 0: %s", code, d.said())
	}
	return code
}

// lose kills the node, and ends its keeper, so that no process has the connection to the kernel.
func (d *daemon) lose() {
	d.t.Helper()
	d.end(syscall.SIGKILL)
	if err := (keeper.Process{Root: d.root}).Drop(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

// result is the result of a command.
type result struct {
	t              *testing.T
	line           string // the command's arguments
	code           int    // exit code
	stdout, stderr string
}

// run runs a lighter command to its end.
func run(t *testing.T, args ...string) result { t.Helper(); return runAs(t, nil, args...) }

// runAs does what run does, with a prefix that executes the command, for example setpriv, which
// changes the user.
func runAs(t *testing.T, prefix []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := append(append(prefix, lighter), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s: %v", strings.Join(argv, " "), err)
	}
	return result{t, strings.Join(args, " "), cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// good checks that the command succeeded without a message on standard error, and returns its
// standard output.
func (r result) good() string {
	r.t.Helper()
	if r.code != 0 || r.stderr != "" {
		r.t.Fatalf("%s: exit code %d, want 0 without a message: %s", r.line, r.code, r.stderr)
	}
	return r.stdout
}

// bad checks that the command failed with an exit code, and that its message is one line that
// contains words.
func (r result) bad(code int, words ...string) {
	r.t.Helper()
	if r.code != code || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "lighter: ") {
		r.t.Errorf("%s: exit code %d with %q, want %d with one line", r.line, r.code, r.stderr, code)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			r.t.Errorf("%s: %q does not contain %q", r.line, r.stderr, word)
		}
	}
}

// mountsBelow lists the mount points below dir, the last mounted first.
func mountsBelow(t *testing.T, dir string) (points []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			points = append([]string{point}, points...)
		}
	}
	return points
}

// shows checks that dir has the files of tools:1 with their contents, in the mounted tree.
func shows(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "text"))
	if err != nil || !strings.HasPrefix(string(text), "linux/amd64") {
		t.Errorf("%s/text is %q (%v), want linux/amd64", dir, text, err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "large"))
	if err != nil || !bytes.Equal(got, large) {
		t.Errorf("%s/large: read %d bytes (%v), want the %d bytes of large", dir, len(got), err, len(large))
	}
}

// mountsOn returns the number of mounts on dir.
func mountsOn(t *testing.T, dir string) (n int) {
	t.Helper()
	for _, point := range mountsBelow(t, filepath.Dir(dir)) {
		if point == dir {
			n++
		}
	}
	return n
}

func status(t *testing.T, root string) report.Status {
	t.Helper()
	s, err := control.New(root).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}
