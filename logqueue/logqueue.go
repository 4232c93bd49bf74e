// Package logqueue has a log that never blocks its writers: a handler puts lines into a queue, and
// one goroutine writes them. If nothing reads the log and the queue is full, lines are dropped and
// counted. The log reports their number once it is read again.
//
// Lines in the queue are lost when the process crashes or is killed.
package logqueue

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxLines = 1024    // lines in the queue
	maxBytes = 1 << 20 // bytes in the queue
)

// Handler is a slog.Handler whose lines are queued. It is safe for concurrent use.
type Handler struct {
	slog.Handler
	queue *queue
}

// New returns a handler that writes lines to out in the format of the handlers that format returns.
// Close ends its goroutine.
func New(out io.Writer, format func(io.Writer) slog.Handler) *Handler {
	q := &queue{out: out, direct: slog.New(format(out)), lines: make(chan []byte, maxLines), done: make(chan struct{})}
	go q.run()
	return &Handler{format(q), q}
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.Handler.WithAttrs(attrs), h.queue}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.Handler.WithGroup(name), h.queue}
}

// Close waits until the queue is written, at most for the time limit. Later lines are dropped.
func (h *Handler) Close(limit time.Duration) {
	h.queue.close()
	select {
	case <-h.queue.done:
	case <-time.After(limit):
	}
}

// Dropped returns how many lines of a log were dropped. It is 0 unless the log's handler is a
// Handler.
func Dropped(log *slog.Logger) int64 {
	if h, ok := log.Handler().(*Handler); ok {
		return h.queue.dropped.Load()
	}
	return 0
}

// queue is a writer that does not block.
type queue struct {
	out    io.Writer
	direct *slog.Logger // to out; used by run only
	lines  chan []byte
	done   chan struct{} // closed when run has ended

	dropped atomic.Int64 // lines, since the start
	queued  atomic.Int64 // bytes in the queue

	mu     sync.Mutex // guards closed, and sending to lines
	closed bool
}

// Write queues a line, or drops it. It never fails.
func (q *queue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.queued.Load()+int64(len(line)) > maxBytes {
		q.dropped.Add(1)
		return len(line), nil
	}
	select {
	case q.lines <- bytes.Clone(line):
		q.queued.Add(int64(len(line)))
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// run writes lines until the queue is closed and empty.
func (q *queue) run() {
	defer close(q.done)
	var reported int64
	for line := range q.lines {
		_, err := q.out.Write(line)
		q.queued.Add(-int64(len(line)))
		if err != nil {
			q.dropped.Add(1)
			continue
		}
		if dropped := q.dropped.Load(); dropped > reported {
			q.direct.Warn("log lines were dropped because nothing read the log", "lines", dropped-reported)
			reported = dropped
		}
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.lines)
	}
}
