package many

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"lighter/bench"
	"lighter/format/chunk"
	"lighter/format/trace"
	"lighter/test/testkit/site"
)

// workload is a recorded workload that the nodes start.
type workload struct {
	name    string // IMAGE/WORKLOAD
	chains  []string
	tree    chunk.ID
	trace   []byte   // as package trace encodes it
	touched int64    // bytes of the device that the trace's reads have
	units   []string // paths, below the domain, that a node requested
}

// listener is a proxy in front of the hub. It forwards all requests, and keeps the traces that
// nodes report and the paths of the units that they request.
type listener struct {
	server http.Server
	traces chan report

	mu    sync.Mutex // guards units
	units []string   // paths, below the domain, that nodes requested
}

// report is a trace that a node has reported.
type report struct {
	tree chunk.ID
	body []byte // the encoded trace
}

// listen starts a listener at site.SpareAddress.
func listen(hub string) (*listener, error) {
	to, err := url.Parse(hub)
	if err != nil {
		return nil, err
	}
	l := &listener{traces: make(chan report, 64)}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorLog: log.New(io.Discard, "", 0)} // errors of requests that a node cancels
	l.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost && strings.Contains(req.URL.Path, "/traces/") {
			body, err := io.ReadAll(io.LimitReader(req.Body, trace.MaxBytes+1))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if tree, err := chunk.ParseID(path.Base(req.URL.Path)); err == nil {
				select {
				case l.traces <- report{tree, body}:
				default: // the channel is full: drop the report
				}
			}
			req.Body = io.NopCloser(bytes.NewReader(body))
		}
		if _, unit, ok := strings.Cut(req.URL.Path, "/packs/"); ok {
			l.mu.Lock()
			l.units = append(l.units, "/packs/"+unit)
			l.mu.Unlock()
		}
		proxy.ServeHTTP(w, req)
	})
	socket, err := net.Listen("tcp", site.SpareAddress)
	if err != nil {
		return nil, err
	}
	go func() { _ = l.server.Serve(socket) }() // until close
	return l, nil
}

func (l *listener) close() error { return l.server.Close() }

// traceTimeout bounds the time until a node reports a start. The node reports it when nothing was
// read for 10 s.
const traceTimeout = 3 * time.Minute

// next waits for the next trace.
func (l *listener) next(ctx context.Context) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, traceTimeout, errors.New("the node reported no trace"))
	defer cancel()
	select {
	case r := <-l.traces:
		return r, nil
	case <-ctx.Done():
		return report{}, context.Cause(ctx)
	}
}

// keeping is a namespace of containerd that has the image, so that the node does not remove the
// image's index.
const keeping = "keeping"

// record starts a workload in a real container twice: first on a wiped machine, then with all
// needed chunks on the disk and an empty page cache. The simulated nodes replay the second start:
// the pauses between its reads are those of the workload itself.
func (r *run) record(ctx context.Context, w bench.Workload) (*workload, error) {
	if err := r.Need(ctx, w.Image); err != nil {
		return nil, err
	}
	l, err := listen(r.Site.Hub.URL)
	if err != nil {
		return nil, err
	}
	defer l.close()
	r.Site.UseHub(&site.Hub{URL: "http://" + site.SpareAddress, Key: r.Site.Hub.Key})
	if err := errors.Join(r.Site.SetLink(ctx, r.options.Rate, 0), r.Wipe(ctx)); err != nil {
		return nil, err
	}
	m, ref := r.Site.Machine, site.Reference(w.Image)
	if _, err := m.CtrIn(ctx, keeping, "images", "pull", "--plain-http", "--snapshotter", site.Lighter,
		ref); err != nil {
		return nil, err
	}
	const rounds int64 = 2
	var last report
	for round := range rounds {
		if round > 0 {
			if err := errors.Join(m.RemoveImage(ctx, ref), m.StopNode(), m.StartNode(ctx), m.Reconnect(ctx),
				site.DropCaches()); err != nil {
				return nil, err
			}
		}
		if _, err := m.Pull(ctx, site.Lighter, ref); err != nil {
			return nil, err
		}
		if _, err := m.RunUntil(ctx, w.Ready, site.Lighter, ref, w.Argv...); err != nil {
			return nil, err
		}
		if err := r.AssertLazy(ctx, w.Image); err != nil {
			return nil, err
		}
		if last, err = l.next(ctx); err != nil {
			return nil, fmt.Errorf("record %s: %w", w, err)
		}
	}
	recorded, err := r.describe(ctx, w, last)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	recorded.units = l.units
	l.mu.Unlock()
	r.starts[w.Image] += rounds
	packs, err := bench.AwaitLayout(ctx, r.Site.Hub, w.Image, r.starts[w.Image])
	if err != nil {
		return nil, err
	}
	bench.Say("%-12s the hub knows %s", w, packs)
	return recorded, nil
}

func (r *run) describe(ctx context.Context, w bench.Workload, last report) (*workload, error) {
	image, err := r.Inspect(ctx, w.Image)
	if err != nil {
		return nil, err
	}
	if image.Tree != last.tree.String() {
		return nil, fmt.Errorf("record %s: the node reported a start of tree %s, not of %s", w, last.tree, image.Tree)
	}
	to := &workload{name: w.String(), tree: last.tree, trace: last.body}
	for _, layer := range image.Layers {
		to.chains = append(to.chains, layer.Chain)
	}
	t, err := trace.Decode(last.body, last.tree, anyDevice)
	if err != nil {
		return nil, err
	}
	for _, read := range t.Reads {
		to.touched += read.Length
	}
	if len(t.Reads) == 0 {
		return nil, fmt.Errorf("record %s: it read nothing", w)
	}
	bench.Say("%-12s recorded: %d reads of %s in %s", w, len(t.Reads), bench.Size(to.touched),
		t.Reads[len(t.Reads)-1].At)
	return to, nil
}
