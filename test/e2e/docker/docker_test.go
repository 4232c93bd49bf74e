//go:build runtimes

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lighter/node/report"
	"lighter/test/testkit/dockerd"
	"lighter/test/testkit/images"
	"lighter/test/testkit/site"
)

func TestMain(m *testing.M) { os.Exit(site.EnclosedWith(prepare, m.Run)) }

// shared is the engine that most tests share. Its site's hub has the images base and python.
var shared engine

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
	s, err := site.Start(ctx, site.Options{Lighter: lighter, Differ: true, Programs: "tools/docker",
		HubConfig: site.PushTable, NodeArgs: []string{"--blob-namespaces", withLayers}})
	if err != nil {
		return nil, errors.Join(err, unname())
	}
	closeSite := func() error { return errors.Join(s.Close(), unname()) }
	for _, name := range []string{"base", "python"} {
		if err := errors.Join(s.Push(ctx, images.Dir(name), name), s.Hub.Add(ctx, name)); err != nil {
			return nil, errors.Join(err, closeSite())
		}
	}
	if shared, err = newEngine(s, filepath.Join(s.Dir, "docker"), dockerd.Configuration(site.Lighter)); err == nil {
		err = shared.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, closeSite())
	}
	return func() error { return errors.Join(shared.Stop(ctx), closeSite()) }, nil
}

// content returns the digests of Docker's content in containerd.
func content(t *testing.T) []string {
	t.Helper()
	out, err := shared.Site.Machine.CtrIn(t.Context(), "moby", "content", "ls", "--quiet")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

// hasNoLayer checks that containerd has no layer of an image.
func hasNoLayer(t *testing.T, name string) {
	t.Helper()
	all := content(t)
	for _, layer := range images.Manifest(t, name).Layers {
		if slices.Contains(all, layer.Digest.String()) {
			t.Errorf("containerd has the layer %s of %s, want none of its layers", layer.Digest, name)
		}
	}
}

// A pull downloads no layer. The containers run, and read what they need from the hub.
func TestPullIsLazy(t *testing.T) {
	ref := site.Reference("python")
	var output string
	moved := images.Received(t, shared.Site, func() {
		shared.pull(t, ref)
		output = shared.run(t, ref, "python3", "/app/hello.py")
	})
	if output != "hello\n" {
		t.Errorf("the container printed %q, want hello", output)
	}
	if whole := images.Size(t, "python"); moved > whole/3 {
		t.Errorf("pull and run received %d bytes, want at most a third of the image's %d", moved, whole)
	}
	hasNoLayer(t, "python")
	var status report.Status
	if err := shared.Site.Machine.NodeStatus(t.Context(), &status); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(status.Images, func(i report.ImageStatus) bool { return i.Image == ref && i.Lazy }) {
		t.Errorf("the node's images: %+v, want %s", status.Images, ref)
	}
}

// Docker knows of a lazy image and of its containers what it knows of others.
func TestInspect(t *testing.T) {
	ref := site.Reference("base")
	shared.pull(t, ref)
	var image struct {
		RepoTags []string
		Os       string
		RootFS   struct{ Layers []string }
	}
	shared.get(t, "/images/"+ref+"/json", &image)
	if !slices.Contains(image.RepoTags, ref) || image.Os != "linux" ||
		len(image.RootFS.Layers) != len(images.Manifest(t, "base").Layers) {
		t.Errorf("image inspect: got %+v, want the image's name, system and layers", image)
	}
	c := shared.create(t, ref, "sleep", "infinity")
	c.start(t)
	c.exec(t, "sh", "-c", "echo changed > /etc/issue; rm /etc/issue.net; echo new > /new")
	var changes []struct {
		Path string
		Kind int // 0: changed, 1: added, 2: removed
	}
	c.get(t, "/containers/"+c.id+"/changes", &changes)
	got := map[string]int{}
	for _, change := range changes {
		got[change.Path] = change.Kind
	}
	if len(got) != 4 || got["/new"] != 1 || got["/etc/issue.net"] != 2 {
		t.Errorf("docker diff: got %v, want /etc and /etc/issue changed, /etc/issue.net removed, and /new added", got)
	}
	var usage struct {
		ImageUsage struct{ TotalCount, ActiveCount int }
		Images     []struct{ RepoTags []string }
	}
	shared.get(t, "/system/df", &usage)
	if usage.ImageUsage.ActiveCount == 0 && len(usage.Images) == 0 {
		t.Errorf("docker system df: got %+v, want the image", usage)
	}
	var summary struct {
		Driver       string
		DriverStatus [][2]string
	}
	shared.get(t, "/info", &summary)
	if summary.Driver != site.Lighter {
		t.Errorf("docker info: got %+v, want the driver lighter", summary)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A commit of a changed file has a layer of the change, for which nothing of the image is fetched.
func TestCommit(t *testing.T) {
	ref := site.Reference("base")
	shared.pull(t, ref)
	c := shared.create(t, ref, "sleep", "infinity")
	c.start(t)
	c.exec(t, "sh", "-c", "echo changed > /etc/issue")
	var made struct{ ID string }
	moved := images.Received(t, shared.Site, func() {
		c.post(t, "/commit?repo=committed&tag=1&container="+c.id, map[string]any{}, &made)
	})
	if moved > 64<<10 {
		t.Errorf("the commit received %d bytes, want at most 64 KiB: nothing of the image", moved)
	}
	if out := shared.run(t, "committed:1", "cat", "/etc/issue"); out != "changed\n" {
		t.Errorf("the committed file is %q, want the change", out)
	}
	var image struct{ RootFS struct{ Layers []string } }
	if shared.get(t, "/images/committed:1/json", &image); len(image.RootFS.Layers) != 2 {
		t.Errorf("the committed image has the layers %q, want two", image.RootFS.Layers)
	}
	hasNoLayer(t, "base")
}

// dockerfile is built on a lazy image. A RUN instruction reads it.
const dockerfile = `FROM FROM-IMAGE AS first
RUN echo built > /built && grep -c . /etc/passwd > /lines
FROM FROM-IMAGE
COPY --from=first /built /lines /out/
COPY file /file
ENV GREETING=hello
CMD ["sh", "-c", "cat /out/built /file; echo $GREETING"]
`

// buildContext returns a build context with a Dockerfile.
func buildContext(t *testing.T, dockerfile string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{"Dockerfile": dockerfile, "file": "of the context\n"} {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// Both builders build on a lazy image. The classic one fetches no layer of it. BuildKit fetches
// them, because it treats only snapshotters with certain names as lazy.
func TestBuild(t *testing.T) {
	ref := site.Reference("base")
	shared.pull(t, ref)
	t.Cleanup(func() { shared.prune(t) })
	for _, name := range []string{"classic", "buildkit"} {
		t.Run(name, func(t *testing.T) {
			version := map[string]string{"classic": "1", "buildkit": "2"}[name]
			query := url.Values{"version": {version}, "t": {name + ":1"}, "networkmode": {"none"}}
			shared.progress(t, "/build?"+query.Encode(),
				buildContext(t, strings.ReplaceAll(dockerfile, "FROM-IMAGE", ref)))
			if out := shared.run(t, name+":1"); out != "built\nof the context\nhello\n" {
				t.Errorf("the built image prints %q", out)
			}
			if name == "classic" {
				hasNoLayer(t, "base")
			}
		})
	}
}

// docker image prune removes the snapshots of an image. It can be pulled again.
func TestPrune(t *testing.T) {
	ref := site.Reference("python")
	shared.pull(t, ref)
	if removed := shared.prune(t); removed == 0 {
		t.Error("docker image prune removed nothing")
	}
	snapshots, err := shared.Site.Machine.CtrIn(t.Context(), "moby", "snapshots", "--snapshotter", site.Lighter, "ls")
	if err != nil || strings.Count(snapshots, "\n") != 1 {
		t.Errorf("after the prune (%v): got the snapshots\n%s\nwant none", err, snapshots)
	}
	shared.pull(t, ref)
	if out := shared.run(t, ref, "python3", "/app/hello.py"); out != "hello\n" {
		t.Errorf("after a second pull, the container printed %q, want hello", out)
	}
}
