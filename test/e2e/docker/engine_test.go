//go:build runtimes

package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
)

// engine is a dockerd of the machine, with a client of its API.
type engine struct {
	site   *site.Site
	dir    string   // of its sockets, state and configuration
	args   []string // more arguments
	daemon *site.Daemon
	http   http.Client
}

// configuration is Docker's. Its networks and its proxy for ports are not the subject of these
// tests, and need iptables.
const configuration = `{
  "bridge": "none", "iptables": false, "ip6tables": false, "userland-proxy": false,
  "live-restore": true,
  "insecure-registries": ["` + site.HubIP + `/32"],
  "features": {"containerd-snapshotter": true},
  "storage-driver": "lighter"
}
`

// newEngine configures a dockerd with its state in a directory. It is not started yet.
func newEngine(s *site.Site, dir, config string, args ...string) (*engine, error) {
	e := &engine{site: s, dir: dir, args: args}
	e.http.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket())
		}}
	return e, errors.Join(os.MkdirAll(dir, 0o711), os.WriteFile(e.config(), []byte(config), 0o644))
}

func (e *engine) path(name string) string { return filepath.Join(e.dir, name) }
func (e *engine) config() string          { return e.path("daemon.json") }
func (e *engine) socket() string          { return e.path("docker.sock") }

// start starts dockerd.
func (e *engine) start(ctx context.Context) (err error) {
	argv := append([]string{"dockerd", "--config-file", e.config(), "--containerd", e.site.Machine.ContainerdSocket(),
		"--data-root", e.path("data"), "--exec-root", e.path("exec"), "--pidfile", e.path("pid"),
		"--host", "unix://" + e.socket(), "--cgroup-parent", e.site.Machine.Namespace(),
		"--exec-opt", "native.cgroupdriver=cgroupfs"}, e.args...)
	e.daemon, err = e.site.Machine.StartDaemon(ctx, filepath.Base(e.dir), e.socket(), argv...)
	return err
}

// stop removes all containers, and stops dockerd.
func (e *engine) stop(ctx context.Context) error {
	var all []struct{ ID string }
	if err := e.ask(ctx, http.MethodGet, "/containers/json?all=1", nil, &all); err != nil {
		return errors.Join(err, e.daemon.Stop())
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, e.ask(ctx, http.MethodDelete, "/containers/"+c.ID+"?force=1&v=1", nil, nil))
	}
	// With live-restore, dockerd leaves its directory mounted on itself.
	return errors.Join(append(errs, e.daemon.Stop(), unix.Unmount(e.path("data"), 0))...)
}

// request sends a request whose answer the caller reads and closes. A body that is no reader is
// sent as JSON.
func (e *engine) request(ctx context.Context, method, path string, body any) (*http.Response, error) {
	reader, isReader := body.(io.Reader)
	kind := "application/x-tar"
	if !isReader && body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader, kind = bytes.NewReader(text), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, reader)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("X-Registry-Auth", "e30=") // {}: nobody
	res, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < http.StatusBadRequest {
		return res, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, res.Status, bytes.TrimSpace(text)), err)
}

// ask sends a request, and decodes the answer.
func (e *engine) ask(ctx context.Context, method, path string, body, into any) error {
	res, err := e.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if into == nil {
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// read sends a request, and returns the whole answer.
func (e *engine) read(ctx context.Context, method, path string, body any) (string, error) {
	res, err := e.request(ctx, method, path, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// follow sends a request whose answer is a sequence of messages about its progress, and returns
// them. A message may be an error.
func (e *engine) follow(ctx context.Context, path string, body any) (string, error) {
	text, err := e.read(ctx, http.MethodPost, path, body)
	if err != nil {
		return "", err
	}
	for messages := json.NewDecoder(strings.NewReader(text)); ; {
		var message struct{ Error string }
		if err := messages.Decode(&message); errors.Is(err, io.EOF) {
			return text, nil
		} else if err != nil {
			return "", err
		}
		if message.Error != "" {
			return "", fmt.Errorf("POST %s: %s", path, message.Error)
		}
	}
}

// get decodes the answer to a GET.
func (e *engine) get(t *testing.T, path string, into any) {
	t.Helper()
	if err := e.ask(t.Context(), http.MethodGet, path, nil, into); err != nil {
		t.Fatal(err)
	}
}

// post sends a request, and decodes the answer.
func (e *engine) post(t *testing.T, path string, body, into any) {
	t.Helper()
	if err := e.ask(t.Context(), http.MethodPost, path, body, into); err != nil {
		t.Fatal(err)
	}
}

// progress does what follow does.
func (e *engine) progress(t *testing.T, path string, body any) string {
	t.Helper()
	text, err := e.follow(t.Context(), path, body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// pull does what `docker pull` does.
func (e *engine) pull(t *testing.T, ref string) {
	t.Helper()
	name, tag, _ := cutTag(ref)
	e.progress(t, "/images/create?"+url.Values{"fromImage": {name}, "tag": {tag}}.Encode(), nil)
}

// cutTag cuts a reference before its tag.
func cutTag(ref string) (name, tag string, ok bool) {
	at := strings.LastIndexByte(ref, ':')
	return ref[:at], ref[at+1:], at > 0
}

// container is a container of an engine.
type container struct {
	*engine
	id string
}

// create does what `docker create --network none` does. The test removes the container.
func (e *engine) create(t *testing.T, image string, argv ...string) container {
	t.Helper()
	var made struct{ ID string }
	e.post(t, "/containers/create", map[string]any{"Image": image, "Cmd": argv,
		"HostConfig": map[string]any{"NetworkMode": "none"}}, &made)
	c := container{e, made.ID}
	t.Cleanup(func() { _ = c.remove(context.Background()) }) // the test may have removed it
	return c
}

// start does what `docker start` does.
func (c container) start(t *testing.T) {
	t.Helper()
	c.post(t, "/containers/"+c.id+"/start", nil, nil)
}

// remove does what `docker rm --force` does.
func (c container) remove(ctx context.Context) error {
	return c.ask(ctx, http.MethodDelete, "/containers/"+c.id+"?force=1&v=1", nil, nil)
}

// run does what `docker run --rm --network none` does, and returns the output of the process. Its
// exit code has to be 0.
func (e *engine) run(t *testing.T, image string, argv ...string) string {
	t.Helper()
	c := e.create(t, image, argv...)
	c.start(t)
	var ended struct{ StatusCode int }
	c.post(t, "/containers/"+c.id+"/wait", nil, &ended)
	out, err := c.read(t.Context(), http.MethodGet, "/containers/"+c.id+"/logs?stdout=1&stderr=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	out = demultiplex(t, out)
	if ended.StatusCode != 0 {
		t.Fatalf("%q: exit code %d: %s", argv, ended.StatusCode, out)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out
}

// exec does what `docker exec` does, and returns the output of the process.
func (c container) exec(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := c.tryExec(t, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryExec does what exec does. An exit code other than 0 is an error.
func (c container) tryExec(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	var made struct{ ID string }
	err := c.ask(t.Context(), http.MethodPost, "/containers/"+c.id+"/exec",
		map[string]any{"Cmd": argv, "AttachStdout": true, "AttachStderr": true}, &made)
	if err != nil {
		return "", err
	}
	out, err := c.read(t.Context(), http.MethodPost, "/exec/"+made.ID+"/start", map[string]any{})
	if err != nil {
		return "", err
	}
	var ended struct {
		Running  bool
		ExitCode int
	}
	err = c.ask(t.Context(), http.MethodGet, "/exec/"+made.ID+"/json", nil, &ended)
	if err == nil && (ended.Running || ended.ExitCode != 0) {
		err = fmt.Errorf("exec %q: %+v: %s", argv, ended, out)
	}
	return demultiplex(t, out), err
}

// demultiplex joins the frames of both outputs of a process: each has a header of eight bytes, the
// last four of which are its length.
func demultiplex(t *testing.T, stream string) string {
	t.Helper()
	var out strings.Builder
	for len(stream) >= 8 {
		n := int(binary.BigEndian.Uint32([]byte(stream[4:8])))
		if len(stream) < 8+n {
			t.Fatalf("a frame of %d bytes in %q", n, stream)
		}
		out.WriteString(stream[8 : 8+n])
		stream = stream[8+n:]
	}
	return out.String()
}

// prune does what `docker builder prune --all` and `docker image prune --all` do, and returns how
// many names and images it has removed.
func (e *engine) prune(t *testing.T) int {
	t.Helper()
	if err := e.ask(context.Background(), http.MethodPost, "/build/prune?all=1", nil, nil); err != nil {
		t.Error(err)
	}
	var pruned struct {
		ImagesDeleted []struct{ Untagged, Deleted string }
	}
	if err := e.ask(context.Background(), http.MethodPost, "/images/prune?filters="+
		url.QueryEscape(`{"dangling":["false"]}`), nil, &pruned); err != nil {
		t.Error(err)
	}
	return len(pruned.ImagesDeleted)
}

// waitLimit bounds the wait for something that happens soon.
const waitLimit = time.Minute

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, waitLimit)
		}
	}
}
