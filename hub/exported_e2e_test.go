//go:build e2e

package hub_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"golang.org/x/sys/unix"

	"lighter/hub"
	"lighter/hub/objects"
	"lighter/test/testkit/port"
	"lighter/test/testkit/tarball"
	"lighter/wire/client"
)

// startNginx runs Debian's nginx until the test ends, with a server block of deploy/nginx in which
// the pairs of replace are replaced. It returns its URL.
func startNginx(t *testing.T, file string, replace ...string) string {
	t.Helper()
	server, err := os.ReadFile("../deploy/nginx/" + file)
	if err != nil {
		t.Fatal(err)
	}
	address, err := port.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf(`daemon off;
user root;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3;
  uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
%[2]s}
`, dir, strings.NewReplacer(append(replace, "listen 8080", "listen "+address)...).Replace(string(server)))
	if err := os.WriteFile(dir+"/nginx.conf", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", dir+"/nginx.conf", "-e", dir+"/error.log")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	})
	for range 600 {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return "http://" + address
		}
		time.Sleep(50 * time.Millisecond)
	}
	log, _ := os.ReadFile(dir + "/error.log")
	t.Fatalf("nginx does not listen: %s", log)
	return ""
}

// inDirectories makes a hub keep catalog, objects and mirror in directories.
func inDirectories(to string) func(*hub.Config) {
	return func(c *hub.Config) { c.Catalog, c.Bucket, c.Export.To = "", "", to }
}

// A bucket that a hub exports to serves nodes while the hub is stopped: through nginx, without
// credentials.
func TestExportedBucketIsServed(t *testing.T) {
	t.Parallel()
	to, _ := newMirror(t)
	h := startHub(t, exportsTo(to))
	a := h.laid("a:1", image(lowerTar, upperTar))
	h.export()
	want, chunks := h.fetchTree(a.Chain)
	h.stop()

	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := objects.OpenS3(t.Context(), *u)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	var api *s3.Client
	bucket.As(&api)
	policy := fmt.Sprintf(`{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
		"Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::%s/*"]}]}`, u.Host)
	if _, err := api.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: &u.Host,
		Policy: &policy}); err != nil {
		t.Fatal(err)
	}
	endpoint, err := url.Parse(u.Query().Get("endpoint"))
	if err != nil {
		t.Fatal(err)
	}
	web, err := client.New(client.Options{URL: startNginx(t, "bucket.conf", "s3.example.org/BUCKET",
		endpoint.Host+"/"+u.Host)})
	if err != nil {
		t.Fatal(err)
	}
	if got, copied := fetchTree(t, web, a.Chain, false); got != want || !maps.EqualFunc(chunks, copied, slices.Equal) {
		t.Errorf("the bucket's tree is %+v, want %+v", got, want)
	}
	if _, err := web.Manifest(t.Context(), a.Digest); err != nil {
		t.Errorf("the image's manifest: %v", err)
	}
	wantMissing(t, web)
}

// wantMissing checks that a mirror says that it does not have a chain.
func wantMissing(t *testing.T, web *client.Client) {
	t.Helper()
	var answer *client.Error
	_, err := web.Chain(t.Context(), "sha256:"+strings.Repeat("0", 64))
	if !errors.As(err, &answer) || !answer.Missing {
		t.Errorf("an unknown chain: %v, want the mirror's own 404", err)
	}
}

// A hub that is killed with SIGKILL while it exports leaves a mirror that lacks files at most. The
// restarted hub completes it.
func TestExportingProcessIsKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mirror")
	c := hubConfig(t)
	inDirectories(dir)(&c)
	c.Export.Rate = 6 << 20 // the first 4 MiB are written at once
	p := startProcess(t, c)
	a := p.pushReady("a:1", image(tarball.Of(tarball.File("large", noise(1, 12<<20)))))
	packs := filepath.Join(dir, "lighter/1/default/packs")
	for range 3000 {
		if units, _ := filepath.Glob(packs + "/*/*"); len(units) > 3 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	p.kill()
	if got := readMirror(t, dir); len(got["manifests"]) != 0 || len(got["packs"]) == 0 {
		t.Errorf("after the kill: %s, want packs and no manifest yet", got.count())
	}
	c.Export.Rate = 0
	h := runHub(t, openHub(t, c))
	h.export()
	want, _ := h.fetchTree(a.Chain)
	web, err := client.New(client.Options{URL: startNginx(t, "mirror.conf", "/srv/mirror", dir)})
	if err != nil {
		t.Fatal(err)
	}
	h.stop()
	if got, _ := fetchTree(t, web, a.Chain, false); got != want {
		t.Errorf("nginx serves the tree %+v, want %+v", got, want)
	}
	wantMissing(t, web)
	if got := readMirror(t, dir); len(got["manifests"]) != 1 {
		t.Errorf("after the restart: %s, want a manifest", got.count())
	}
}

// On a full disk the mirror lacks what did not fit, and the hub goes on. When images were removed,
// there is room again.
func TestExportOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	h := startHub(t, inDirectories(dir))
	h.Collector().Keep = 0
	h.Exporter().Pause = 100 * time.Millisecond
	h.laid("a:1", image(tarball.Of(tarball.File("large", noise(1, 4<<20)))))
	h.export()
	b := h.laid("b:1", image(tarball.Of(tarball.File("large", noise(2, 4<<20)))))
	h.waitForJob("no space left on device")
	if got := readMirror(t, dir); len(got["manifests"]) != 1 || got["chains"][b.Chain] != "" {
		t.Errorf("on a full disk: %s, want the first image alone", got.count())
	}
	h.remove("a:1")
	h.collect(0)
	h.export()
	if got := readMirror(t, dir); len(got["manifests"]) != 1 || got["chains"][b.Chain] == "" {
		t.Errorf("after the removal: %s, want the second image alone", got.count())
	}
}

// waitForJob waits until the job that exports is tried again because of an error.
func (h *testHub) waitForJob(reason string) {
	h.t.Helper()
	last := ""
	for range 600 {
		if j, err := h.Catalog().Jobs.Open(h.t.Context(), "export", "all"); err == nil {
			if last = j.Error; strings.Contains(last, reason) {
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	h.t.Fatalf("timeout: the job's error is %q, want %q", last, reason)
}
