//go:build e2e

package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"lighter/node/control"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	tars "lighter/test/testkit/tarball"
)

const (
	// ownRoots has the roots of nodes that serve one container, and homes the directories of
	// containers. In the tests, directories of the enclosure hide those of the host.
	ownRoots = "/var/lib/lighter-mounts"
	homes    = "/var/lib/lighter-containers"
	// insideVariable makes the test program the program of the image bare, and is what it prints.
	insideVariable = "LIGHTER_INSIDE"
)

var (
	lighter  string   // the binary that `make build` makes
	nodeRoot string   // root of the node that runs during all tests
	bare     v1.Image // see prepare
)

func TestMain(m *testing.M) {
	if text := os.Getenv(insideVariable); text != "" {
		fmt.Println(text)
		os.Exit(5)
	}
	os.Exit(site.EnclosedWith(prepare, m.Run))
}

// prepare starts a hub at the default address, and a node. The hub has the images base:1, as it is;
// app:1, base with a config that sets all that a config can; and bare:1, a program without a shell,
// a user, or any other file.
func prepare() (stop func() error, err error) {
	if lighter, err = site.Binary(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		return nil, err
	}
	for _, path := range []string{ownRoots, homes} {
		hides := filepath.Join(dir, filepath.Base(path))
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Mkdir(hides, 0o700),
			syscall.Mount(hides, path, "", syscall.MS_BIND, "")); err != nil {
			return nil, err
		}
	}
	// crun refuses a machine with both versions of cgroups, if version 2 has controllers.
	if err := syscall.Unmount("/sys/fs/cgroup/unified", syscall.MNT_DETACH); err != nil &&
		!errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
		return nil, err
	}
	hub, err := background(dir, "hub", "--root", filepath.Join(dir, "hub"))
	if err != nil {
		return nil, err
	}
	nodeRoot = filepath.Join(dir, "n")
	node, err := background(dir, "node", "--root", nodeRoot, "--address", "", "--disk-free-low", "0")
	if err != nil {
		return nil, err
	}
	stop = func() error {
		var errs []error
		for _, cmd := range []*exec.Cmd{node, hub} {
			errs = append(errs, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		}
		return errors.Join(errs...)
	}
	if err := addImages(dir); err != nil {
		return nil, errors.Join(err, stop())
	}
	for range 500 {
		if control.Running(nodeRoot) {
			return stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("the node is not ready"), stop())
}

func background(dir, command string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(dir, command+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(lighter, append([]string{command}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}

func addImages(dir string) error {
	base, err := images.Open(images.Dir("base"))
	if err != nil {
		return err
	}
	app, err := changed(base, func(c *v1.Config) {
		c.Entrypoint, c.Cmd, c.WorkingDir, c.User = []string{"/bin/sh", "-c"}, []string{"id -un; pwd; echo $GREETING"},
			"/var/tmp", "www-data"
		c.Env, c.Labels = []string{"PATH=/usr/bin:/bin", "GREETING=hello"}, map[string]string{"vendor": "us"}
		c.StopSignal = "SIGQUIT"
	})
	if err != nil {
		return err
	}
	if bare, err = bareImage(); err != nil {
		return err
	}
	for name, image := range map[string]v1.Image{"base": base, "app": app, "bare": bare} {
		if err := add(filepath.Join(dir, name), name+":1", image); err != nil {
			return err
		}
	}
	return nil
}

// changed returns an image with another config.
func changed(image v1.Image, change func(*v1.Config)) (v1.Image, error) {
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	change(&file.Config)
	return mutate.ConfigFile(image, file)
}

// bareImage has nothing but this test program, which needs no other file.
func bareImage() (v1.Image, error) {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	blob := tars.Of(tars.File("program", string(program), tars.Mode(0o755)))
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(1), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", "amd64"
	return mutate.ConfigFile(image, file)
}

// add adds an image to the hub, which may not listen yet.
func add(dir, name string, image v1.Image) error {
	err := images.Write(dir, "1", image)
	if err != nil {
		return err
	}
	for range 500 {
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

// result is the result of a command.
type result struct {
	t         *testing.T
	line      string
	code      int
	out, errs string
}

// oci is the OCI runtime that a test uses: runc, or crun (withEachRuntime).
var oci = "runc"

// withEachRuntime runs a test with runc and with crun. After each, nothing of a container is left.
func withEachRuntime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	defer func(before string) { oci = before }(oci)
	for _, oci = range []string{"runc", "crun"} {
		t.Run(oci, func(t *testing.T) {
			leavesNothing(t)
			test(t)
		})
	}
}

// command returns the arguments of a lighter command that uses the node with a root.
func command(root, command string, args ...string) []string {
	flags := []string{lighter, command, "--root", root}
	if command == "run" {
		flags = append(flags, "--runtime", oci)
	}
	return append(flags, args...)
}

// run runs a lighter command with the running node.
func run(t *testing.T, name string, args ...string) result {
	t.Helper()
	return execute(t, "", command(nodeRoot, name, args...)...)
}

// alone runs a lighter command without a running node.
func alone(t *testing.T, name string, args ...string) result {
	t.Helper()
	return execute(t, "", command("/no/node", name, args...)...)
}

func execute(t *testing.T, stdin string, argv ...string) result {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var out, errs strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{t, strings.Join(argv[1:], " "), cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// gives fails the test unless the command had that exit code and printed exactly these lines.
func (r result) gives(code int, lines ...string) {
	r.t.Helper()
	want := ""
	if len(lines) > 0 {
		want = strings.Join(lines, "\n") + "\n"
	}
	if r.code != code || r.out != want {
		r.t.Errorf("%s: exit code %d, output %q, errors %q; want %d and %q", r.line, r.code, r.out, r.errs, code, want)
	}
}

// fails fails the test unless the command had that exit code, and its error has these words, in one
// line.
func (r result) fails(code int, words ...string) {
	r.t.Helper()
	if r.code != code || r.out != "" || strings.Count(r.errs, "\n") != 1 {
		r.t.Errorf("%s: exit code %d, output %q, errors %q; want %d and one line", r.line, r.code, r.out, r.errs, code)
	}
	for _, word := range words {
		if !strings.Contains(r.errs, word) {
			r.t.Errorf("%s: error %q does not have %q", r.line, r.errs, word)
		}
	}
}

// leavesNothing makes a test fail if anything of its containers is left at its end.
func leavesNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, left := range leftovers(t) {
			t.Errorf("left behind: %s", left)
		}
	})
}

// leftovers lists directories, mounts and processes of containers, and nodes of their own.
func leftovers(t *testing.T) (left []string) {
	t.Helper()
	for _, dir := range []string{homes, ownRoots} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			left = append(left, filepath.Join(dir, entry.Name()))
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		point := strings.Fields(line)[4]
		for _, dir := range []string{homes, ownRoots, nodeRoot + "/mounts"} {
			if strings.HasPrefix(point, dir+"/") {
				left = append(left, "mount "+point)
			}
		}
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && (bytes.Contains(text, []byte(homes)) ||
			bytes.Contains(text, []byte(ownRoots)) || bytes.Contains(text, []byte("infinity"))) {
			left = append(left, "process "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return left
}
