//go:build runtimes

package buildkit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/test/testkit/buildkitd"
	"lighter/test/testkit/eventually"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
	"lighter/test/testkit/sitetest"
	"lighter/wire"
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// shared is the builder that most tests share, and plain one whose worker downloads and unpacks
// images. Their site's hub has the images base and python.
var shared, plain builder

func prepare() (stop func() error, err error) {
	ctx := context.Background()
	lighter, err := site.Binary()
	if err != nil {
		return nil, err
	}
	unname, err := site.StartPushName()
	if err != nil {
		return nil, err
	}
	s, err := site.Start(ctx, site.Options{Lighter: lighter, HubConfig: site.PushTable})
	if err != nil {
		return nil, errors.Join(err, unname())
	}
	for _, name := range []string{"base", "python"} {
		err = errors.Join(err, s.Push(ctx, images.Dir(name), name), s.Hub.Add(ctx, name))
	}
	if err == nil {
		shared, err = newBuilder(ctx, s, "lazy", buildkitd.Lazy(s))
	}
	if err == nil {
		plain, err = newBuilder(ctx, s, "plain", buildkitd.Overlayfs)
	}
	stop = func() error { return errors.Join(shared.Stop(), plain.Stop(), s.Close(), unname()) }
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// python begins a Dockerfile with an image that the hub knows.
var python = "FROM " + site.Reference("python")

// scratch ends a Dockerfile whose stage "run" has written /out.
const scratch = "\nFROM scratch\nCOPY --from=run /out /\n"

// A build step on a lazy image reads the image's files from the hub. BuildKit downloads no layer.
func TestFromIsLazy(t *testing.T) {
	shared.prune(t)
	var out string
	moved := images.Received(t, shared.Site, func() {
		out = shared.output(t, python+" AS run\nRUN python3 /app/hello.py > /out"+scratch)
	})
	if out != "hello\n" {
		t.Errorf("the build step printed %q, want hello", out)
	}
	if whole := images.Size(t, "python"); moved > whole/3 {
		t.Errorf("the build received %d bytes, want a third of the image's %d at most", moved, whole)
	}
	shared.hasNoLayer(t, "python")
	if images := sitetest.Status(t, shared.Site).Images; len(images) != 1 || !images[0].Lazy || images[0].Image == "" {
		t.Errorf("images of the node: %+v, want one, which is lazy and has a name", images)
	}
}

// A stage copies a file from a lazy image that no step has run on. BuildKit reads that file alone.
func TestCopyFromLazyImage(t *testing.T) {
	shared.prune(t)
	want := plain.output(t, "FROM scratch\nCOPY --from="+site.Reference("python")+" /etc/debian_version /out\n")
	var out string
	moved := images.Received(t, shared.Site, func() {
		out = shared.output(t, "FROM scratch\nCOPY --from="+site.Reference("python")+" /etc/debian_version /out\n")
	})
	if out != want || out == "" {
		t.Errorf("copied %q from a lazy image, want %q", out, want)
	}
	if limit := images.Size(t, "python") / 3; moved > limit {
		t.Errorf("the build received %d bytes, want %d at most", moved, limit)
	}
	shared.hasNoLayer(t, "python")
}

// stages is a Dockerfile of two stages on two images of the hub. The times of all changed files and
// directories are fixed, so that two builds make the same layers.
var stages = "FROM " + site.Reference("base") + ` AS tools
RUN mkdir /tools && echo tool > /tools/a && ln /tools/a /tools/b && ln -s a /tools/c && \
    touch -h -d @1000000000 /tools/a /tools/c /tools
` + python + ` AS run
RUN rm -r /etc/apt && echo changed > /etc/issue && chmod 600 /etc/fstab && touch -d @1000000001 /etc/issue /etc
COPY --from=tools /tools /tools
COPY --link file /
RUN python3 -c "open('/made', 'w').write(open('/tools/b').read() + open('/file').read())" && touch -d @1000000002 /made
`

// A build on lazy images makes the same image, byte for byte, as on images that were unpacked. The
// image can be pushed: BuildKit gets the base image's layers from where it comes from. Neither the
// build nor the push reads the whole base image: the layers of the steps are made of what the steps
// have changed.
func TestSameImageAsUnpacked(t *testing.T) {
	shared.prune(t)
	epoch := []string{"--opt", "build-arg:SOURCE_DATE_EPOCH=1000000003"}
	plain.build(t, stages, append(epoch, "--output", push("unpacked"))...)
	moved := images.Received(t, shared.Site, func() {
		shared.build(t, stages, append(epoch, "--output", push("lazy"))...)
	})
	if limit := images.Size(t, "python") / 3; moved > limit {
		t.Errorf("build and push received %d bytes, want %d at most", moved, limit)
	}
	shared.hasNoLayer(t, "python")
	want, got := remoteManifest(t, "unpacked"), remoteManifest(t, "lazy")
	if got != want {
		t.Errorf("manifest of the image that was built on a lazy image:\n%s\nwant:\n%s", got, want)
	}
	layers := images.Manifest(t, "python").Layers
	for _, layer := range layers {
		if !strings.Contains(got, layer.Digest.String()) {
			t.Errorf("the built image has no layer %s, which its base image has", layer.Digest)
		}
	}
	if err := shared.Site.Machine.RemoveImage(t.Context(), site.Reference("lazy")); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Site.Machine.Pull(t.Context(), site.Overlayfs, site.Reference("lazy")); err != nil {
		t.Errorf("pull the built image: %v", err)
	}
}

// random makes a file whose contents differ each time the step runs.
var random = python + " AS run\nRUN cat /proc/sys/kernel/random/uuid > /out" + scratch

// A build's cache is exported, and another build uses it after all was pruned: its steps do not run
// again. A step on top of an imported step runs on the files of before.
//
// The export is a build without output, and the steps are those of the last stage. BuildKit leaves
// others on a lazy image out of an exported cache (docs/runtimes/buildkit.md).
func TestCacheIsExportedAndImported(t *testing.T) {
	local := t.TempDir()
	steps := python + "\nRUN cat /proc/sys/kernel/random/uuid > /out\n"
	for _, c := range []struct{ name, to, from string }{
		{"registry", "type=registry,mode=max,ref=" + site.Reference("cache"),
			"type=registry,ref=" + site.Reference("cache")},
		{"local", "type=local,mode=max,dest=" + local, "type=local,src=" + local},
	} {
		t.Run(c.name, func(t *testing.T) {
			shared.prune(t)
			shared.build(t, steps, "--export-cache", c.to)
			shared.build(t, steps, "--output", push("first"))
			shared.prune(t)
			shared.build(t, steps, "--import-cache", c.from, "--output", push("again"))
			want := layersOf(t, "first")
			if got := layersOf(t, "again"); !slices.Equal(got, want) {
				t.Errorf("the step ran again: its image has layers %v, want %v", got, want)
			}
			shared.prune(t)
			shared.build(t, steps+"RUN cat /out > /2\n", "--import-cache", c.from, "--output", push("more"))
			if got := layersOf(t, "more"); len(got) != len(want)+1 || !slices.Equal(got[:len(want)], want) {
				t.Errorf("an image with one more step has layers %v, want one more than %v", got, want)
			}
		})
	}
}

// Within one run of buildkitd, a step on a lazy image runs once. After a restart, buildkitd has the
// results without such an image, and makes the others again.
func TestRestartedBuilder(t *testing.T) {
	shared.prune(t)
	first := shared.output(t, random)
	more := python + " AS run\nRUN cat /proc/sys/kernel/random/uuid > /out\nRUN python3 /app/hello.py >> /out" + scratch
	if out := shared.output(t, more); out != first+"hello\n" {
		t.Errorf("a step on a step that has run made %q, want %q", out, first+"hello\n")
	}
	shared.restart(t)
	if again := shared.output(t, random); again != first {
		t.Errorf("the last stage was made again: it has %q, first %q", again, first)
	}
	again := python + " AS run\nRUN cat /proc/sys/kernel/random/uuid > /out\n" +
		"RUN wc -c < /out > /n && mv /n /out" + scratch
	if out := shared.output(t, again); out != "37\n" {
		t.Errorf("a step on the image after the restart printed %q, want 37", out)
	}
}

// When the cache is pruned, the node has no image and no snapshot of BuildKit any more.
func TestPrune(t *testing.T) {
	shared.output(t, random)
	shared.prune(t)
	isEmpty(t)
}

// BuildKit pushes the image that it has built through the hub. Then the image is ready in the hub.
func TestPushThroughTheHub(t *testing.T) {
	h := shared.Site.Hub
	shared.build(t, python+"\nRUN echo pushed > /pushed\n", "--output",
		"type=image,push=true,registry.insecure=true,name="+h.PushReference("through"))
	name := site.Reference("through")
	eventually.Holds(t, name+" to be ready", func() bool {
		state, err := h.State(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return state == wire.StateReady
	})
}

// isEmpty checks that the node has no image and no snapshot of BuildKit.
func isEmpty(t *testing.T) {
	t.Helper()
	if st := sitetest.Status(t, shared.Site); len(st.Images)+len(st.Mounts)+len(st.Leftovers) != 0 {
		t.Errorf("after a prune, the node has images %+v, mounts %+v, leftovers %+v, want none", st.Images, st.Mounts,
			st.Leftovers)
	}
	left, err := filepath.Glob(filepath.Join(shared.Site.Machine.NodeRoot(), "build", "[0-9]*"))
	if err != nil || len(left) != 0 {
		t.Errorf("after a prune, the node has the snapshots %v (%v), want none", left, err)
	}
}

// sum is a step that says that it runs (/flag), pauses, and reads many files of the image.
const sum = "RUN touch /flag; sleep 2; find /usr/lib/python3* -type f | sort | xargs cat | sha256sum > /out; rm /flag"

// A node is killed and started again while a build step runs. The step goes on, and reads the right
// bytes.
func TestNodeRestartsDuringBuild(t *testing.T) {
	shared.prune(t)
	want := plain.output(t, python+" AS run\n"+sum+scratch)
	out := make(chan string, 1)
	failed := make(chan error, 1)
	dir := t.TempDir()
	go func() {
		err := shared.tryBuild(t, python+" AS run\n"+sum+scratch, "--output", "type=local,dest="+dir)
		text, unread := os.ReadFile(filepath.Join(dir, "out"))
		failed <- errors.Join(err, unread)
		out <- string(text)
	}()
	shared.awaitFile(t, "flag")
	shared.Site.Machine.KillNode()
	if err := shared.Site.Machine.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if got := <-out; got != want {
		t.Errorf("the step read files with checksum %q, want %q", got, want)
	}
}

// While the hub is away, images that the node does not know are downloaded and unpacked as usual.
func TestHubIsAway(t *testing.T) {
	shared.prune(t)
	shared.Site.Hub.Kill()
	out := shared.output(t, python+" AS run\nRUN python3 /app/hello.py > /out"+scratch)
	if err := shared.Site.Hub.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out != "hello\n" {
		t.Errorf("the build step printed %q, want hello", out)
	}
	if images := sitetest.Status(t, shared.Site).Images; len(images) != 1 || images[0].Lazy {
		t.Errorf("images of the node: %+v, want one, which is not lazy", images)
	}
	shared.prune(t)
	isEmpty(t)
}
