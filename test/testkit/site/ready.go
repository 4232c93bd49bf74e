package site

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Ready is the condition for a container to be ready. The zero value means: its process has ended.
type Ready struct {
	Line *regexp.Regexp // matches a line of its standard output or standard error
	Port int            // or: GET http://127.0.0.1:Port/Path in its network returns 200
	Path string
}

// Ran has the durations of a container's phases, and its output.
type Ran struct {
	Create time.Duration // ctr containers create
	Ready  time.Duration // from ctr tasks start until the container is ready
	Start  time.Duration // from ctr tasks start until the end of the process; see RunUntil
	// Machine.Bytes when the container was created, before its process, and when it was ready.
	CreateBytes, ReadyBytes int64
	Output                  string // standard output; with a Ready condition, the beginning of both outputs
}

// Total is the sum of Create and Start.
func (r Ran) Total() time.Duration { return r.Create + r.Start }

// Run creates a container of a pulled image, runs argv in it to its end, and removes it.
func (m *Machine) Run(ctx context.Context, snapshotter, ref string, argv ...string) (Ran, error) {
	return m.RunUntil(ctx, Ready{}, snapshotter, ref, argv...)
}

// RunUntil does what Run does, but kills the container's process once the container is ready. If
// ready is zero, it waits for the end of the process.
func (m *Machine) RunUntil(ctx context.Context, ready Ready, snapshotter, ref string, argv ...string) (Ran, error) {
	id := m.nextContainer()
	var r Ran
	start := time.Now()
	_, err := m.Ctr(ctx, append([]string{"containers", "create", "--snapshotter", snapshotter, ref, id}, argv...)...)
	r.Create = time.Since(start)
	if err == nil {
		r.CreateBytes, err = m.Bytes()
	}
	if err != nil {
		return r, err
	}
	if ready.Line == nil && ready.Port == 0 {
		start = time.Now()
		r.Output, err = m.Ctr(ctx, "tasks", "start", id)
		r.Start = time.Since(start)
		r.Ready = r.Start
		bytes, failed := m.Bytes()
		r.ReadyBytes, err = bytes, errors.Join(err, failed)
	} else {
		err = m.untilReady(ctx, id, ready, &r)
	}
	if err != nil {
		return r, errors.Join(err, m.removeContainer(ctx, id))
	}
	_, err = m.Ctr(ctx, "containers", "rm", id)
	return r, err
}

// readyLimit bounds the time from a container's start until it was ready and its process has ended.
const readyLimit = 5 * time.Minute

// untilReady starts a container's task, waits until it is ready, and kills it.
func (m *Machine) untilReady(ctx context.Context, id string, ready Ready, r *Ran) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	cmd := m.site.program(ctx, m.ctr(m.namespace, []string{"tasks", "start", id}))
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = write, write
	w := &watch{readied: make(chan struct{})}
	start := time.Now()
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		return errors.Join(fmt.Errorf("start container %s: %w", id, err), read.Close())
	}
	var watching sync.WaitGroup
	probing, stop := context.WithCancel(ctx)
	watching.Go(func() { w.lines(read, ready.Line) })
	if ready.Port > 0 {
		watching.Go(func() { m.probe(probing, id, ready, w) })
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-w.readied:
		r.Ready = time.Since(start)
		r.ReadyBytes, err = m.Bytes()
		_, killErr := m.Ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", id)
		err = errors.Join(err, killErr)
		<-ended // by SIGKILL, or at the end of ctx
		r.Start = time.Since(start)
	case err = <-ended: // also at the end of ctx
		if ctx.Err() != nil {
			err = fmt.Errorf("wait until container %s is ready: %w", id, context.Cause(ctx))
		} else {
			err = errors.Join(fmt.Errorf("container %s ended before it was ready", id), err)
		}
	}
	stop()
	watching.Wait()
	r.Output = w.text.String()
	if err != nil {
		err = fmt.Errorf("%w; its output: %s", err, strings.TrimSpace(r.Output))
	}
	return errors.Join(err, read.Close())
}

// watch detects that a container is ready.
type watch struct {
	readied chan struct{} // closed when the container is ready
	once    sync.Once
	text    strings.Builder // the beginning of the container's output
}

func (w *watch) ready() { w.once.Do(func() { close(w.readied) }) }

// lines reads a container's output to its end. The container is ready if a line matches wanted.
func (w *watch) lines(from io.Reader, wanted *regexp.Regexp) {
	const maxText = 64 << 10 // bytes; a line that begins before this limit is kept as a whole
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if w.text.Len() < maxText {
			w.text.WriteString(line)
		}
		if wanted != nil && wanted.MatchString(strings.TrimRight(line, "\r\n")) {
			w.ready()
		}
		if err != nil {
			return // the container's output has ended
		}
	}
}

// probePause is the time between two probes of a container.
const probePause = 5 * time.Millisecond

// probe sends GET requests until the container answers with 200, or ctx ends.
func (m *Machine) probe(ctx context.Context, id string, ready Ready, w *watch) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			text, err := os.ReadFile(filepath.Join(m.bundle(id), "init.pid"))
			if err != nil {
				return nil, err // the container has no process yet
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				return nil, err
			}
			return dialIn(ctx, pid, address)
		}}}
	url := fmt.Sprintf("http://127.0.0.1:%d/%s", ready.Port, strings.TrimPrefix(ready.Path, "/"))
	for ctx.Err() == nil {
		if answers(ctx, &client, url) {
			w.ready()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(probePause):
		}
	}
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	res, err := client.Do(req)
	if err != nil {
		return false // the server does not listen yet
	}
	_, err = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return err == nil && res.StatusCode == http.StatusOK
}
