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

// Ready is what makes a container ready. The zero value: that its process has ended.
type Ready struct {
	Line *regexp.Regexp // a line that it writes to its standard output or its standard error
	Port int            // or GET http://127.0.0.1:Port/Path in its own network is answered with 200
	Path string
}

// Ran says how long the parts of a container's life took, and what it wrote.
type Ran struct {
	Create     time.Duration // ctr containers create
	Ready      time.Duration // ctr tasks start, up to the moment when it is ready
	Start      time.Duration // the same, up to the end of the process
	ReadyBytes int64         // Machine.Bytes at the moment when it was ready
	Output     string        // what it wrote: to its standard output, if it ended by itself
}

// Total is the time of the user's wait.
func (r Ran) Total() time.Duration { return r.Create + r.Start }

// Run creates a container of a pulled image, runs argv in it to its end, and
// removes it.
func (m *Machine) Run(ctx context.Context, snapshotter, ref string, argv ...string) (Ran, error) {
	return m.RunUntil(ctx, Ready{}, snapshotter, ref, argv...)
}

// RunUntil is Run for what does not end by itself: once it is ready it is killed.
func (m *Machine) RunUntil(ctx context.Context, ready Ready, snapshotter, ref string, argv ...string) (Ran, error) {
	id := m.nextContainer()
	var r Ran
	start := time.Now()
	_, err := m.Ctr(ctx, append([]string{"containers", "create", "--snapshotter", snapshotter, ref, id}, argv...)...)
	r.Create = time.Since(start)
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

// readyLimit is how long a container may take to be ready.
const readyLimit = 5 * time.Minute

// untilReady starts a container's task, and kills it when it is ready.
func (m *Machine) untilReady(ctx context.Context, id string, ready Ready, r *Ran) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	cmd := m.site.program(ctx, m.ctr(m.namespace, []string{"tasks", "start", id}))
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = write, write
	w := &watch{is: make(chan struct{})}
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
	case <-w.is:
		r.Ready = time.Since(start)
		if r.ReadyBytes, err = m.Bytes(); err == nil {
			_, err = m.Ctr(ctx, "tasks", "kill", "--signal", "SIGKILL", id)
		}
		<-ended // it was killed
		r.Start = time.Since(start)
	case err = <-ended:
		err = fmt.Errorf("container %s ended (%w) and was not ready", id, err)
	}
	stop()
	watching.Wait()
	r.Output = w.text.String()
	if err != nil {
		err = fmt.Errorf("%w; it wrote: %s", err, strings.TrimSpace(r.Output))
	}
	return errors.Join(err, read.Close())
}

// watch waits for a container to be ready. text is what it wrote, not too much of it.
type watch struct {
	is   chan struct{} // closed when it is
	once sync.Once
	text strings.Builder
}

func (w *watch) ready() { w.once.Do(func() { close(w.is) }) }

func (w *watch) lines(from io.Reader, wanted *regexp.Regexp) {
	const enough = 64 << 10
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if w.text.Len() < enough {
			w.text.WriteString(line)
		}
		if wanted != nil && wanted.MatchString(strings.TrimRight(line, "\r\n")) {
			w.ready()
		}
		if err != nil {
			return // it has ended
		}
	}
}

// probePause is the time between two questions whether a container answers.
const probePause = 5 * time.Millisecond

// probe asks the container until it answers with 200, or ctx is done.
func (m *Machine) probe(ctx context.Context, id string, ready Ready, w *watch) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		text, err := os.ReadFile(filepath.Join(m.bundle(id), "init.pid"))
		if err != nil {
			return nil, err // it has no process yet
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
		return false // not yet
	}
	_, err = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return err == nil && res.StatusCode == http.StatusOK
}
