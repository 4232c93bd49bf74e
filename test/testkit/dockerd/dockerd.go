// Package dockerd runs a Docker on the machine of a site, with a client of its API. test/setup
// docker builds its programs.
package dockerd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Engine is a dockerd of the machine.
type Engine struct {
	Site   *site.Site
	Daemon *site.Daemon // of the last Start

	dir  string   // of its sockets, state and configuration
	args []string // more arguments
	http http.Client
}

// Configuration returns the configuration of a Docker that keeps its images in containerd, with a
// snapshotter of containerd as storage driver. Docker's networks and its proxy for ports are not
// the subject here, and need iptables.
func Configuration(snapshotter string) string {
	return `{
  "bridge": "none", "iptables": false, "ip6tables": false, "userland-proxy": false,
  "live-restore": true,
  "insecure-registries": ["` + site.HubIP + `/32"],
  "features": {"containerd-snapshotter": true},
  "storage-driver": "` + snapshotter + `"
}
`
}

// New configures a dockerd with its state in a directory. It is not started yet.
func New(s *site.Site, dir, config string, args ...string) (*Engine, error) {
	e := &Engine{Site: s, dir: dir, args: args}
	e.http.Transport = &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.Socket())
		}}
	return e, errors.Join(os.MkdirAll(dir, 0o711), os.WriteFile(e.Config(), []byte(config), 0o644))
}

func (e *Engine) path(name string) string { return filepath.Join(e.dir, name) }

// Config returns the path of dockerd's configuration.
func (e *Engine) Config() string { return e.path("daemon.json") }

// Socket returns the path of dockerd's socket.
func (e *Engine) Socket() string { return e.path("docker.sock") }

// Start starts dockerd. Its containers run with the runc that is built for it.
func (e *Engine) Start(ctx context.Context) error {
	program, err := tool("dockerd")
	if err != nil {
		return err
	}
	runc, err := tool("runc")
	if err != nil {
		return err
	}
	argv := append([]string{program, "--config-file", e.Config(), "--containerd", e.Site.Machine.ContainerdSocket(),
		"--data-root", e.path("data"), "--exec-root", e.path("exec"), "--pidfile", e.path("pid"),
		"--host", "unix://" + e.Socket(), "--cgroup-parent", e.Site.Machine.Namespace(),
		"--exec-opt", "native.cgroupdriver=cgroupfs",
		"--add-runtime", "built=" + runc, "--default-runtime", "built"}, e.args...)
	e.Daemon, err = e.Site.Machine.StartDaemon(ctx, filepath.Base(e.dir), e.Socket(), argv...)
	return err
}

// Built returns an error, which names the remedy, if the programs are not built.
func Built() error {
	_, dockerd := tool("dockerd")
	_, runc := tool("runc")
	return cmp.Or(dockerd, runc)
}

// tool returns the path of a program that is built for Docker.
func tool(name string) (string, error) {
	work, err := workdir.Path()
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, site.Ours, "docker", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find %s (test/setup docker builds it): %w", name, err)
	}
	return path, nil
}

// Stop removes all containers, and stops dockerd.
func (e *Engine) Stop(ctx context.Context) error {
	var all []struct{ ID string }
	if err := e.Ask(ctx, http.MethodGet, "/containers/json?all=1", nil, &all); err != nil {
		return errors.Join(err, e.Daemon.Stop())
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, e.Remove(ctx, c.ID))
	}
	// With live-restore, dockerd leaves its directory mounted on itself.
	return errors.Join(append(errs, e.Daemon.Stop(), unix.Unmount(e.path("data"), 0))...)
}

// Request sends a request whose answer the caller reads and closes. A body that is no reader is
// sent as JSON.
func (e *Engine) Request(ctx context.Context, method, path string, body any) (*http.Response, error) {
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

// Ask sends a request, and decodes the answer, unless into is nil.
func (e *Engine) Ask(ctx context.Context, method, path string, body, into any) error {
	res, err := e.Request(ctx, method, path, body)
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

// Read sends a request, and returns the whole answer.
func (e *Engine) Read(ctx context.Context, method, path string, body any) (string, error) {
	res, err := e.Request(ctx, method, path, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// Follow sends a request whose answer is a sequence of messages about its progress, and returns
// them. A message may be an error.
func (e *Engine) Follow(ctx context.Context, path string, body any) (string, error) {
	text, err := e.Read(ctx, http.MethodPost, path, body)
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
