package compat

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"lighter/node/binds"
	"lighter/node/control"
	"lighter/test/testkit/example"
	"lighter/test/testkit/socketdir"
)

// asked is a request of a command to its node, and the node's answer.
type asked struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   string `json:"body"`
	Status int    `json:"status"`
	Answer string `json:"answer"`
}

// ofContainer is what a node has started for a container.
var ofContainer = binds.Started{Bind: binds.Bind{Name: imageName, Dir: "/mnt/app", Chain: "sha256:1234"},
	Config: []byte(`{"os":"linux"}`)}

// starter is a Starter that has started ofContainer.
type starter struct{ t *testing.T }

func (s starter) Start(_ context.Context, name, platform, dir string) (binds.Started, error) {
	equal(s.t, "request", []string{name, platform, dir}, []string{imageName, "linux/amd64", "/mnt/app"})
	return ofContainer, nil
}

// onControl runs serve on the control socket of a new root until the test ends.
func onControl(t *testing.T, serve func(context.Context, net.Listener) error) (root string) {
	t.Helper()
	root = socketdir.New(t)
	listener, err := net.Listen("unix", control.Socket(root))
	noError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		noError(t, <-ended)
	})
	return root
}

// ofToday runs a node of today that starts ofContainer.
func ofToday(t *testing.T) (root string) {
	return onControl(t, (&control.Server{Starter: starter{t}}).Serve)
}

// send sends the request to the node of a root, and returns the exchange with that node's answer.
func (a asked) send(t *testing.T, root string) asked {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", control.Socket(root))
	}
	req, err := http.NewRequestWithContext(t.Context(), a.Method, "http://control"+a.Path, strings.NewReader(a.Body))
	noError(t, err)
	res, err := (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(req)
	noError(t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	noError(t, err)
	a.Status, a.Answer = res.StatusCode, string(answer)
	return a
}

// between runs something that answers the one request of a client with what answer returns.
func between(t *testing.T, answer func(asked) asked) (root string) {
	return onControl(t, func(ctx context.Context, listener net.Listener) error {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Error(err)
			}
			a := answer(asked{Method: req.Method, Path: req.URL.RequestURI(), Body: string(body)})
			w.WriteHeader(a.Status)
			_, _ = io.WriteString(w, a.Answer) // the client sees what is missing
		})}
		context.AfterFunc(ctx, func() { server.Close() })
		_ = server.Serve(listener) // http.ErrServerClosed
		return nil
	})
}

// start makes a client of today ask the node of a root for ofContainer.
func start(t *testing.T, root string) {
	t.Helper()
	got, err := control.New(root).Start(t.Context(), imageName, "linux/amd64", "/mnt/app")
	noError(t, err)
	equal(t, "what was started", got, ofContainer)
}

// earlierStart returns POST /start of `lighter run` of an earlier version, with its node's answer.
func earlierStart(t *testing.T) (a asked) {
	decode(t, example.Stored(t, "start-1.json", func() []byte {
		var a asked
		today := ofToday(t)
		start(t, between(t, func(request asked) asked {
			a = request.send(t, today)
			return a
		}))
		return encode(t, a)
	}), &a)
	return a
}

// TestStartOfToday starts an image with a client of today at a node of an earlier version.
func TestStartOfToday(t *testing.T) {
	earlier := earlierStart(t)
	start(t, between(t, func(request asked) asked {
		equal(t, "request", request.Method+" "+request.Path, earlier.Method+" "+earlier.Path)
		hasAll(t, "request", parse(t, request.Body), parse(t, earlier.Body))
		return earlier
	}))
}

// TestStartAtANodeOfToday sends the request of an earlier version to a node of today.
func TestStartAtANodeOfToday(t *testing.T) {
	earlier := earlierStart(t)
	got := earlier.send(t, ofToday(t))
	equal(t, "status", got.Status, earlier.Status)
	hasAll(t, "answer", parse(t, got.Answer), parse(t, earlier.Answer))
}
