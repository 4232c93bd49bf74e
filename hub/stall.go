package hub

import (
	"io"
	"net/http"
	"time"
)

// stallTimeout bounds how long a client may take for the next piece of a request or an answer. Slow
// clients are served; silent ones must not keep connections and files open for ever.
const stallTimeout = time.Minute

// stallPiece is the number of bytes of a file that a client has to receive within the timeout.
const stallPiece = 1 << 20

// unstalled ends requests whose clients stall. The timeout does not run while next neither reads
// nor writes.
func unstalled(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// Some writers have no deadlines (those of tests), so errors of the controller are ignored.
		control := http.NewResponseController(w)
		steady := &steadyWriter{w, control, timeout}
		steady.deadline(0) // an earlier request on this connection may have set one
		defer func() {     // the server still reads the rest of the body and flushes
			_ = control.SetReadDeadline(time.Now().Add(timeout))
			steady.deadline(timeout)
		}()
		if req.Body != nil && req.Body != http.NoBody {
			req.Body = &steadyBody{req.Body, control, timeout}
		}
		next.ServeHTTP(steady, req)
	})
}

type steadyBody struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
}

// Read reads within the timeout.
func (b *steadyBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(b.timeout))
	defer func() { _ = b.control.SetReadDeadline(time.Time{}) }()
	return b.ReadCloser.Read(p)
}

type steadyWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// deadline sets how long from now writes may take; 0: no limit.
func (w *steadyWriter) deadline(after time.Duration) {
	var at time.Time
	if after > 0 {
		at = time.Now().Add(after)
	}
	_ = w.control.SetWriteDeadline(at)
}

// Unwrap is for http.ResponseController.
func (w *steadyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write writes within the timeout.
func (w *steadyWriter) Write(p []byte) (int, error) {
	w.deadline(w.timeout)
	defer w.deadline(0)
	return w.ResponseWriter.Write(p)
}

// FlushError flushes within the timeout.
func (w *steadyWriter) FlushError() error {
	w.deadline(w.timeout)
	defer w.deadline(0)
	return w.control.Flush()
}

// ReadFrom writes a file piece by piece. The kernel copies each piece (sendfile).
func (w *steadyWriter) ReadFrom(from io.Reader) (n int64, err error) {
	defer w.deadline(0)
	// sendfile accepts a file, or a LimitedReader of a file, but not a LimitedReader of a
	// LimitedReader.
	limited, isLimited := from.(*io.LimitedReader)
	for {
		piece := &io.LimitedReader{R: from, N: stallPiece}
		if isLimited {
			piece.R, piece.N = limited.R, min(limited.N, stallPiece)
		}
		size := piece.N
		w.deadline(w.timeout)
		k, err := io.Copy(w.ResponseWriter, piece)
		n += k
		if isLimited {
			limited.N -= k
		}
		if err != nil || k < size || size == 0 {
			return n, err
		}
	}
}

var _ io.ReaderFrom = (*steadyWriter)(nil)
