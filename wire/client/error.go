package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"lighter/format/chunk"
	"lighter/wire"
)

// Error is an answer of a hub with a status of 300 or more.
type Error struct {
	Status  int    // of HTTP
	Message string // from the body, at most a few kilobytes
	// RetryAfter is how long the hub asks the client to wait; 0: it does not say.
	RetryAfter time.Duration
	// Missing says that the hub itself does not have the object (wire.MissingHeader). Chain and
	// Manifest set it for every 404 and 410.
	Missing bool
}

func (c *Client) errorOf(res *http.Response) *Error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxMessage)) // a part of the message is better than none
	var body struct {
		Error  string
		Errors []struct{ Message string } // of the hub's registry
	}
	switch err := json.Unmarshal(text, &body); {
	case err == nil && body.Error != "":
	case err == nil && len(body.Errors) > 0 && body.Errors[0].Message != "":
		body.Error = fmt.Sprintf("hub %s: %s: %s", c.url, res.Status, body.Errors[0].Message)
	default:
		body.Error = fmt.Sprintf("hub %s: %s", c.url, res.Status)
	}
	return &Error{Status: res.StatusCode, Message: body.Error, RetryAfter: retryAfter(res.Header),
		Missing: res.StatusCode == http.StatusNotFound && res.Header.Get(wire.MissingHeader) != ""}
}

func (e *Error) Error() string { return e.Message }

// Is makes an error with Missing a chunk.ErrNotFound.
func (e *Error) Is(target error) bool { return target == chunk.ErrNotFound && e.Missing }

// IsRefusal reports whether the hub works and would give the same answer again: the object
// does not exist, or this client may not have it.
func (e *Error) IsRefusal() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return e.Status >= 400 && e.Status < 500
}

// retryAfter reads the Retry-After header: seconds, or a date.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(date))
	}
	return 0
}
