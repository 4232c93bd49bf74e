//go:build e2e

// Package direct tests images that start from their registry, without a hub.
package direct

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"lighter/format/stargz"
	"lighter/test/testkit/images"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
)

func TestMain(m *testing.M) { os.Exit(site.Enclosed(m.Run)) }

// start starts a site whose node reads images that match patterns (trusting). It reads no layers in
// the background, so that a test can count what a pull receives.
func start(t *testing.T, options site.Options, patterns ...string) *site.Site {
	t.Helper()
	return startWith(t, options, trusting(patterns...), quiet())
}

// trusting is the line of a node's configuration that trusts the tables of repositories: of the
// site's registry, or of the one that a pattern names as HOST:PORT.
func trusting(patterns ...string) string {
	host, _, _ := strings.Cut(site.Reference("x"), "/")
	var direct []string
	for _, p := range patterns {
		if !strings.Contains(p, ":") {
			p = host + "/" + p
		}
		direct = append(direct, strconv.Quote(p))
	}
	return "direct = [" + strings.Join(direct, ", ") + "]"
}

// quiet is the line that keeps a node from reading in the background for 12 hours.
func quiet() string {
	begin := time.Now().Add(12 * time.Hour)
	return fmt.Sprintf("complete_schedule = [%q]", begin.Format("15:04")+"-"+begin.Add(time.Minute).Format("15:04"))
}

// configure writes the configuration of a node without a hub.
func configure(t *testing.T, config string, lines ...string) {
	t.Helper()
	text := "hubs = []\n" + strings.Join(lines, "\n") + "\n" + site.RegistryTable + "plain_http = true\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// startWith starts a site whose node has further lines in its configuration.
func startWith(t *testing.T, options site.Options, lines ...string) *site.Site {
	t.Helper()
	config := filepath.Join(t.TempDir(), "node.toml")
	configure(t, config, lines...)
	return startAt(t, options, config)
}

// startAt starts a site whose node has a configuration.
func startAt(t *testing.T, options site.Options, config string) *site.Site {
	t.Helper()
	var err error
	if options.Lighter, err = site.Binary(); err != nil {
		t.Fatal(err)
	}
	options.NodeArgs = []string{"--config", config}
	return sitetest.Start(t, options)
}

// push makes an image in a lazy format of another image, and pushes it.
func push(t *testing.T, s *site.Site, from, name string, o stargz.Options) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	if err := layout.Lazy(t.Context(), images.Dir(from), dir, o); err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}
}

// run runs a container, and returns its output.
func run(t *testing.T, s *site.Site, snapshotter, ref string, argv ...string) string {
	t.Helper()
	ran, err := s.Machine.Run(t.Context(), snapshotter, ref, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return ran.Output
}

// pull pulls an image, and returns how many bytes the machine has received.
func pull(t *testing.T, s *site.Site, ref string) int64 {
	t.Helper()
	return images.Received(t, s, func() {
		if _, err := s.Machine.Pull(t.Context(), site.Lighter, ref); err != nil {
			t.Fatal(err)
		}
	})
}

// compare compares the files of an image that was pulled lazily with those of overlayfs.
func compare(t *testing.T, s *site.Site, ref string) {
	t.Helper()
	sitetest.Unpack(t, s, ref).Compare(t, s, site.Lighter, ref, sitetest.StargzFiles)
}

// Images with tables of contents start lazily, and have the same files as with overlayfs. After a
// restart of the node, what was read is served with the registry gone.
func TestTables(t *testing.T) {
	s := start(t, site.Options{}, "lazy/*")
	// All have the same tree. Its locations are those of the first one.
	for _, format := range []stargz.Format{stargz.EStargz, stargz.StargzZstd, stargz.ContainersZstd} {
		name := fmt.Sprint("format", int(format))
		push(t, s, "base", "lazy/"+name, stargz.Options{Format: format,
			Prioritized: []string{"usr/bin/bash", "usr/bin/dash"}})
		ref := site.Reference("lazy/" + name)
		if moved := pull(t, s, ref); moved > 4<<20 {
			t.Errorf("%s: the pull received %d bytes, want the tables only", name, moved)
		}
		if st := sitetest.Status(t, s); len(st.Images) != 1 || !st.Images[0].Lazy {
			t.Errorf("%s: images %+v, want one that is lazy", name, st.Images)
		}
		if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
			t.Fatalf("%s: got %q", name, out)
		}
		if st := sitetest.Status(t, s); format == stargz.EStargz && st.Ahead.Startup.Fetched == 0 {
			t.Errorf("%s: prefetched %+v, want the prioritized files", name, st.Ahead)
		}
		compare(t, s, ref)
		if st := sitetest.Status(t, s); len(st.Lost) > 0 {
			t.Errorf("%s: lost trees %+v, want none: no hub has had them", name, st.Lost)
		}
		if err := s.Machine.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	ref := site.Reference("lazy/format2")
	pull(t, s, ref)
	if err := s.StopRegistry(); err != nil {
		t.Fatal(err)
	}
	s.Machine.KillNode()
	err := errors.Join(s.Machine.StartNode(t.Context()), s.Machine.Reconnect(t.Context()), site.DropCaches())
	if err != nil {
		t.Fatal(err)
	}
	if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
		t.Errorf("after a restart without the registry: got %q", out)
	}
}

const hello = "echo hello"

// A program that neither the image's config names nor a guess knows is guessed before it runs:
// containerd knows what its container will run.
func TestProgramOfAContainer(t *testing.T) {
	s := start(t, site.Options{}, "lazy/*")
	push(t, s, "base", "lazy/base", stargz.Options{Format: stargz.EStargz})
	ref := site.Reference("lazy/base")
	pull(t, s, ref)
	if st := sitetest.Status(t, s); st.Ahead.Guesses.Added > 0 {
		t.Errorf("prefetched %+v before a container was started", st.Ahead)
	}
	if out := run(t, s, site.Lighter, ref, "/usr/bin/dpkg", "--version"); !strings.Contains(out, "Debian") {
		t.Errorf("got %q", out)
	}
	if st := sitetest.Status(t, s); st.Ahead.Guesses.Added == 0 || st.Ahead.Guesses.Used == 0 {
		t.Errorf("prefetched %+v, want what dpkg reads", st.Ahead)
	}
}

// The tables of a repository that the operator does not trust count nothing, also if the layers are
// those of a trusted one: the image is pulled as usual.
func TestUntrustedTables(t *testing.T) {
	s := start(t, site.Options{}, "lazy/*")
	push(t, s, "base", "other/base", stargz.Options{Format: stargz.EStargz})
	ref := site.Reference("other/base")
	if moved := pull(t, s, ref); moved < images.Size(t, "base")/2 {
		t.Errorf("the pull received %d bytes, want the whole image", moved)
	}
	if st := sitetest.Status(t, s); len(st.Images) != 1 || st.Images[0].Lazy {
		t.Errorf("images %+v, want one that is not lazy", st.Images)
	}
	if out := run(t, s, site.Lighter, ref, "cat", "/etc/debian_version"); !strings.HasPrefix(out, "12.") {
		t.Errorf("got %q", out)
	}
}

// lighter runs a subcommand, and returns its output.
func lighter(t *testing.T, args ...string) string {
	t.Helper()
	program, err := site.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("lighter %s: %v", args[0], err)
	}
	return string(out)
}

// What `lighter export` pushes starts lazily, and has the files of the image that it was made of.
func TestExported(t *testing.T) {
	s := start(t, site.Options{}, "lazy/*")
	if err := s.Push(t.Context(), images.Dir("base"), "base"); err != nil {
		t.Fatal(err)
	}
	original := site.Reference("base")
	unpacked := sitetest.Unpack(t, s, original)
	first := filepath.Join(t.TempDir(), "first")
	if err := os.WriteFile(first, []byte("/usr/bin/dash\n/usr/lib/x86_64-linux-gnu/libc.so.6\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for format, from := range map[string]string{"estargz": original, "zstdchunked": "oci:" + images.Dir("base")} {
		ref := site.Reference("lazy/" + format)
		lighter(t, "export", "--format", format, "--to", "docker://"+ref, "--plain-http", "--source-plain-http",
			"--prioritize", first, from)
		if moved := pull(t, s, ref); moved > 4<<20 {
			t.Errorf("%s: the pull received %d bytes, want the tables only", format, moved)
		}
		if out := run(t, s, site.Lighter, ref, "sh", "-c", hello); out != "hello\n" {
			t.Fatalf("%s: got %q", format, out)
		}
		unpacked.Compare(t, s, site.Lighter, ref, nil)
	}
}

// An image without tables whose lower layers are those of a direct image is unpacked on the tree of
// these layers, which the node makes then.
func TestLowerLayers(t *testing.T) {
	s := start(t, site.Options{Hubs: []string{}}, "lazy/*")
	dir := t.TempDir()
	extend := func(from, to, name string) string {
		err := layout.Extend(from, filepath.Join(dir, to),
			func(l *layout.Layer) error { return l.File("opt/"+name, []byte(name)) })
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, to)
	}
	lazy := func(from, to string) string {
		o := stargz.Options{Format: stargz.EStargz}
		if err := layout.Lazy(t.Context(), from, filepath.Join(dir, to), o); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, to)
	}
	two := lazy(extend(images.Dir("base"), "base-two", "upper"), "two")
	mixed := extend(lazy(images.Dir("base"), "one"), "mixed", "plain")
	if err := errors.Join(s.Push(t.Context(), two, "lazy/two"), s.Push(t.Context(), mixed, "lazy/mixed")); err != nil {
		t.Fatal(err)
	}
	pull(t, s, site.Reference("lazy/two"))
	if moved := pull(t, s, site.Reference("lazy/mixed")); moved > images.Size(t, "base")/4 {
		t.Errorf("the pull received %d bytes, want the plain layer only", moved)
	}
	if out := run(t, s, site.Lighter, site.Reference("lazy/mixed"), "cat", "/opt/plain"); out != "plain" {
		t.Errorf("got %q", out)
	}
	if out := run(t, s, site.Lighter, site.Reference("lazy/two"), "cat", "/opt/upper"); out != "upper" {
		t.Errorf("got %q", out)
	}
	compare(t, s, site.Reference("lazy/mixed"))
}
