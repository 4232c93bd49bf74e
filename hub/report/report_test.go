package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lighter/wire"
)

// A reason is one printable line of bounded length, without secrets in URLs. It wraps its error.
func TestReasonIsOnePrintableLine(t *testing.T) {
	const noise = "operation error S3: ListObjectsV2, exceeded maximum number of attempts, 3, " +
		"https response error StatusCode: 0, RequestID: , HostID: , "
	for text, want := range map[string]string{
		`Get "http://minio:9000/b/x?X-Amz-Signature=secret&y=1": refused`: `Get "http://minio:9000/b/x": refused`,
		"https://user:pass@host/a?token=1 and more":                       "https://host/a and more",
		"line\nline\r\x1b[31mred\u202e\tend":                              "line line [31mred end",
		`entry "etc/a?b=c": no such file`:                                 `entry "etc/a?b=c": no such file`,
		noise + `request send failed, Get "http://s3:9000/b": EOF`: `S3 ListObjectsV2: request send failed, ` +
			`Get "http://s3:9000/b": EOF`,
		strings.Repeat("ä", 2000): strings.Repeat("ä", maxReason/2) + "…",
	} {
		if got := Reason(errors.New(text)); got != want {
			t.Errorf("reason of %q: %q, want %q", text, got, want)
		}
	}
	if err := Error(ErrBusy); !errors.Is(err, ErrBusy) {
		t.Errorf("%v does not wrap ErrBusy", err)
	}
	if err := Error(nil); err != nil {
		t.Errorf("Error(nil) = %v, want nil", err)
	}
}

// secretive is an error with details that only the log may have.
type secretive struct{ error }

func (e secretive) Error() string  { return "connect to db.example.org: " + e.error.Error() }
func (e secretive) Public() string { return "no database" }
func (e secretive) Unwrap() error  { return e.error }

// A reason has the public text of an error that keeps details for the log.
func TestReasonIsPublic(t *testing.T) {
	err := fmt.Errorf("begin: %w", errors.Join(ErrBusy, fmt.Errorf("again: %w", secretive{errors.New("refused")})))
	if got, want := Reason(err), "begin: "+ErrBusy.Error()+" again: no database"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

// The log has the details of an error, without the secrets of its URLs.
func TestLoggedErrors(t *testing.T) {
	err := Logged(fmt.Errorf("again: %w", secretive{errors.New("GET https://u:p@host/a?signature=1: refused")}))
	if got, want := err.Error(), "again: connect to db.example.org: GET https://host/a refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A sender sends each changed state of a step once, and the last state before it returns.
func TestSenderReportsEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Progress
		layer := p.Step("layer", "a", 10)
		done := make(chan struct{})
		go func() {
			layer.Add(4)
			time.Sleep(10 * sendEvery)
			layer.Add(6)
			close(done)
		}()
		var sent []wire.Progress
		err := NewSender(func(p wire.Progress) error { sent = append(sent, p); return nil }).Await(t.Context(),
			done, &p)
		if err != nil || len(sent) != 2 || sent[0].Bytes != 4 || sent[1].Bytes != 10 {
			t.Errorf("sent %+v and returned %v, want 4 and 10 bytes", sent, err)
		}
	})
}

// Await returns the cause with which its context ended.
func TestSenderEndsWithItsContext(t *testing.T) {
	gone := errors.New("the client is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := NewSender(nil).Await(ctx, nil, &Progress{}); !errors.Is(err, gone) {
		t.Errorf("Await returned %v, want %v", err, gone)
	}
}
