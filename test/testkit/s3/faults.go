package s3

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"
)

// Faults has each kind of fault by its name.
var Faults = map[string]Fault{"unavailable": unavailable, "cut": cut, "lost": lost, "hangs": hang, "slow": slow}

// unavailable answers 503.
func unavailable(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

// cut sends half of the answer's body, and closes the connection. If the body is shorter than 2
// bytes, cut sends nothing.
func cut(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
	answer := httptest.NewRecorder()
	forward(answer, req)
	if half := answer.Body.Len() / 2; half > 0 {
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()[:half])
	}
	panic(http.ErrAbortHandler)
}

// lost forwards a request to the server, and closes the connection instead of answering.
func lost(_ http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
	forward(httptest.NewRecorder(), req)
	panic(http.ErrAbortHandler)
}

// hang reads a request and never answers it.
func hang(_ http.ResponseWriter, req *http.Request, _ http.HandlerFunc) {
	_, _ = io.Copy(io.Discard, req.Body)
	<-req.Context().Done()
}

// The kernel buffers up to 3 MB that a client has sent and the proxy has not read. At slowRate the
// proxy reads them in less than half a second.
const (
	slowRate  = 8 << 20                                 // of slow, in bytes per second
	slowPause = 50 * time.Millisecond                   // between two pieces
	slowPiece = int(slowRate * slowPause / time.Second) // longest piece, in bytes
)

// slow transfers bodies slowly, in both directions.
func slow(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
	req.Body = slowBody{req.Body}
	forward(slowAnswer{w}, req)
}

type slowBody struct{ io.ReadCloser }

func (b slowBody) Read(p []byte) (int, error) {
	n, err := io.ReadAtLeast(b.ReadCloser, p[:min(len(p), slowPiece)], min(len(p), slowPiece))
	if err == io.ErrUnexpectedEOF {
		err = nil // the next Read returns io.EOF
	}
	time.Sleep(slowPause * time.Duration(n) / time.Duration(slowPiece))
	return n, err
}

type slowAnswer struct{ http.ResponseWriter }

func (w slowAnswer) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = w.ResponseWriter.Write(p[n:min(n+slowPiece, len(p))])
		n += more
		w.ResponseWriter.(http.Flusher).Flush()
		time.Sleep(slowPause * time.Duration(more) / time.Duration(slowPiece))
	}
	return n, err
}

// First returns a Fault that applies fault to the first request with each method and URL, and
// forwards later requests.
func First(fault Fault) Fault {
	var mu sync.Mutex
	requested := map[string]bool{} // by method and URL
	return func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		key := req.Method + " " + req.RequestURI
		mu.Lock()
		isRepeated := requested[key]
		requested[key] = true
		mu.Unlock()
		if isRepeated {
			forward(w, req)
			return
		}
		fault(w, req, forward)
	}
}

// Every returns a Fault that applies fault to every nth request, and forwards the others.
func Every(n int64, fault Fault) Fault {
	var requests atomic.Int64
	return func(w http.ResponseWriter, req *http.Request, forward http.HandlerFunc) {
		if requests.Add(1)%n == 0 {
			fault(w, req, forward)
			return
		}
		forward(w, req)
	}
}
