package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"testing"

	"lighter/buildinfo"
	"lighter/node/binds"
	"lighter/node/completion"
	"lighter/node/ondemand"
	"lighter/test/testkit/socketdir"
)

// serve serves s on a control socket as a daemon does, and returns a client.
func serve(t *testing.T, s *Server) *Client {
	t.Helper()
	root := socketdir.New(t)
	listener, err := net.Listen("unix", Socket(root))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve: got %v, want no error", err)
		}
	})
	return New(root)
}

// binder is a Binder that fails with err, or succeeds if err is nil.
type binder struct{ err error }

func (b *binder) Bind(context.Context, string, string, string) (binds.Bind, error) {
	return binds.Bind{}, b.err
}

func (b *binder) Unbind(string) error { return b.err }

// The client returns ErrNotMounted only for a directory at which the node has mounted nothing.
// Other errors keep their text.
func TestErrors(t *testing.T) {
	b := &binder{fmt.Errorf("unmount /x: %w", binds.ErrNotBound)}
	c := serve(t, &Server{Binds: b})
	if err := c.Unmount(t.Context(), "/x"); !errors.Is(err, ErrNotMounted) || !strings.Contains(err.Error(), "/x") {
		t.Errorf("unmount: got %v, want %v with the directory", err, ErrNotMounted)
	}
	b.err = fmt.Errorf("mount at /x: %w", fs.ErrNotExist)
	if err := c.Mount(t.Context(), "name", "", "/x"); errors.Is(err,
		ErrNotMounted) || err == nil || err.Error() != b.err.Error() {
		t.Errorf("mount: got %v, want %v", err, b.err)
	}
	b.err = nil
	if err := c.Mount(t.Context(), "name", "", "/x"); err != nil {
		t.Errorf("mount: got %v, want no error", err)
	}
	if _, err := New(t.TempDir()).Status(t.Context()); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("without a daemon: got %v, want %v", err, ErrNoDaemon)
	}
}

// starter is a Starter that fails with err.
type starter struct{ err error }

func (s *starter) Start(context.Context, string, string, string) (binds.Started, error) {
	return binds.Started{Config: []byte(`{"os": "linux"}`)}, s.err
}

// The client returns binds.ErrNoImage only if the hub has no such image. The config arrives as it
// is.
func TestStart(t *testing.T) {
	s := &starter{}
	c := serve(t, &Server{Starter: s})
	if got, err := c.Start(t.Context(), "name", "", "/x"); err != nil || string(got.Config) != `{"os":"linux"}` {
		t.Errorf("got config %s, %v", got.Config, err)
	}
	for _, err := range []error{fmt.Errorf("%w name", binds.ErrNoImage), errors.New("no hub answers")} {
		s.err = err
		_, got := c.Start(t.Context(), "name", "", "/x")
		if fmt.Sprint(got) != err.Error() || errors.Is(got, binds.ErrNoImage) != errors.Is(err, binds.ErrNoImage) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
}

// recorder is a Recorder that reports twice and returns err.
type recorder struct{ err error }

func (r *recorder) Record(_ context.Context, _ string, text bool, report func(ondemand.Progress)) error {
	report(ondemand.Progress{Reads: 1})
	end := ondemand.Progress{Reads: 2, Over: true}
	if text {
		end.Text = "trace"
	}
	report(end)
	return r.err
}

// A client gets all reports of a stream, and the error at its end.
func TestStream(t *testing.T) {
	r := &recorder{}
	c := serve(t, &Server{Recorder: r})
	for _, want := range []error{nil, errors.New("no hub")} {
		r.err = want
		var got []ondemand.Progress
		err := c.Record(t.Context(), "name", true, func(p ondemand.Progress) { got = append(got, p) })
		if fmt.Sprint(err) != fmt.Sprint(want) || len(got) != 2 || got[1].Text != "trace" {
			t.Errorf("got %+v, %v; want two reports, %v", got, err, want)
		}
	}
}

// If the daemon ends in the middle of a stream, the client returns an error.
func TestStreamThatEndsEarly(t *testing.T) {
	root := socketdir.New(t)
	listener, err := net.Listen("unix", Socket(root))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	go server.Serve(listener)
	defer server.Close()
	if err := New(root).Record(t.Context(), "name", false, func(ondemand.Progress) {}); !errors.Is(err, errEnded) {
		t.Errorf("got %v, want %v", err, errEnded)
	}
}

// If a daemon of another version does not know a request, or its answer cannot be read, the
// client's error names both versions.
func TestOtherVersion(t *testing.T) {
	root := socketdir.New(t)
	listener, err := net.Listen("unix", Socket(root))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, "v9")
		if r.URL.Path == "/status" {
			fmt.Fprint(w, `{"version": 9}`)
			return
		}
		http.NotFound(w, r)
	})}
	go server.Serve(listener)
	defer server.Close()
	c := New(root)
	_, statusErr := c.Status(t.Context())
	_, cacheErr := c.Cache(t.Context())
	streamErr := c.Fetch(t.Context(), "name", func(completion.Progress) {})
	for what, err := range map[string]error{"status": statusErr, "cache": cacheErr, "stream": streamErr} {
		if err == nil || !strings.Contains(err.Error(),
			"the node is version v9, and this program is "+buildinfo.Release()) {
			t.Errorf("%s: got %v, want an error with both versions", what, err)
		}
	}
}
