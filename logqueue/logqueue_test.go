package logqueue

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

func text(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

// A log that nothing reads blocks no writer, and its queue has a bounded size. Once the log is
// read, it reports how many lines were dropped.
func TestLogThatNobodyReads(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		count int
	}{
		"short lines": {"line", 2 * maxLines},
		"long lines":  {strings.Repeat("long", maxBytes/16), 16},
	} {
		t.Run(name, func(t *testing.T) {
			read, write := io.Pipe()
			t.Cleanup(func() { read.Close() })
			h := New(write, text)
			log := slog.New(h)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range c.count {
						log.With("key", "value").WithGroup("group").Info(c.line)
					}
				})
			}
			all.Wait()
			if queued := h.queue.queued.Load(); queued > maxBytes || len(h.queue.lines) > maxLines {
				t.Errorf("got %d bytes in %d lines in the queue, want at most %d and %d",
					queued, len(h.queue.lines), maxBytes, maxLines)
			}
			dropped := Dropped(log.With("a", "b"))
			if dropped == 0 {
				t.Error("got no dropped lines, want some")
			}
			h.Close(time.Millisecond)
			log.Info("too late")
			lines, reported := int64(0), int64(0)
			go func() {
				h.Close(time.Minute)
				write.Close()
			}()
			in := bufio.NewReader(read)
			for {
				s, err := in.ReadString('\n')
				if err != nil {
					break
				}
				var n int64
				if _, after, ok := strings.Cut(s, " lines="); ok {
					if _, err := fmt.Sscan(after, &n); err != nil {
						t.Error(err)
					}
					reported += n
					continue
				}
				lines++
			}
			if want := int64(4*c.count + 1); lines+reported != want || reported != dropped+1 {
				t.Errorf("got %d lines and %d reported as dropped (%d before the end), want %d in total",
					lines, reported, dropped, want)
			}
		})
	}
}

// All lines are written in order if something reads the log.
func TestLinesAreWritten(t *testing.T) {
	var out strings.Builder
	h := New(&out, text)
	log := slog.New(h)
	for i := range 100 {
		log.Info("line", "n", i)
	}
	log.Debug("hidden")
	h.Close(time.Minute)
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(got) != 100 || Dropped(log) != 0 || Dropped(slog.New(text(io.Discard))) != 0 {
		t.Fatalf("got %d lines, %d dropped; want 100 and 0", len(got), Dropped(log))
	}
	for i, line := range got {
		if !strings.HasSuffix(line, fmt.Sprintf("n=%d", i)) {
			t.Errorf("line %d: got %s, want n=%d", i, line, i)
		}
	}
}
