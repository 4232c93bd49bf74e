package events

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"lighter/public"
	"lighter/renewed"
	"lighter/wire"
)

const (
	sendTimeout = 15 * time.Second // for one attempt
	maxAnswer   = 64 << 10         // bytes of an answer that are read, so that the connection can be used again
	maxRest     = 6 * time.Hour    // the longest pause that a target can ask for (Retry-After)
)

// cloudEvent is an event in the JSON format of CloudEvents 1.0. The format has a handful of
// attributes. The SDK for it has its own clients and transports, which this package would have to
// bound, so it is not used.
type cloudEvent struct {
	SpecVersion     string     `json:"specversion"`
	ID              string     `json:"id"`
	Source          string     `json:"source"`
	Type            string     `json:"type"`
	Subject         string     `json:"subject"`
	Time            time.Time  `json:"time"`
	DataContentType string     `json:"datacontenttype"`
	Data            wire.Event `json:"data"`
}

func newCloudEvent(source string, e wire.Event) cloudEvent {
	return cloudEvent{SpecVersion: "1.0", ID: e.ID, Source: source, Type: "lighter.image." + e.Kind, Subject: e.Name,
		Time: e.At, DataContentType: "application/json", Data: e}
}

// encode returns the body and the headers of an event: in structured mode, or in binary mode.
func (c cloudEvent) encode(binary bool) (body []byte, header http.Header, err error) {
	header = http.Header{}
	header.Set(wire.EventIDHeader, c.ID)
	if !binary {
		header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
		body, err = json.Marshal(c)
		return body, header, err
	}
	header.Set("Content-Type", c.DataContentType)
	for name, value := range map[string]string{"specversion": c.SpecVersion, "id": c.ID, "source": c.Source,
		"type": c.Type, "subject": c.Subject, "time": c.Time.Format(time.RFC3339Nano)} {
		header.Set("Ce-"+name, value) // names of images are ASCII without spaces, quotes and percent signs
	}
	body, err = json.Marshal(c.Data)
	return body, header, err
}

// sign returns the value of the signature's header.
func sign(secret string, at time.Time, body []byte) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write([]byte(stamp + "."))
	sum.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(sum.Sum(nil))
}

// sender sends events to one target. It is safe for concurrent use.
type sender struct {
	Target
	secret *renewed.Value[string] // nil: events are not signed
	client *http.Client
}

// newSender reads the files of a target.
func newSender(t Target, log *slog.Logger) (*sender, error) {
	s := &sender{Target: t}
	if t.SecretFile != "" {
		var err error
		if s.secret, err = renewed.Read(log, func() (string, error) { return wire.ReadSecret(t.SecretFile) },
			t.SecretFile); err != nil {
			return nil, fmt.Errorf("event %q: secret_file: %w", t.Name, err)
		}
	}
	trusted, err := trusting(t.CA)
	if err != nil {
		return nil, fmt.Errorf("event %q: ca: %w", t.Name, err)
	}
	over := &public.Transport{Allows: public.Hosts(t.hosts()...),
		PlainHTTP: func(string) bool { return t.PlainHTTP },
		Remedy:    func(string) string { return "set private = true in its table [[event]]" }}
	over.Next = over.Bind(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted},
		MaxIdleConnsPerHost: atOnce, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: maxAnswer,
		ForceAttemptHTTP2: true})
	s.client = &http.Client{Timeout: sendTimeout, Transport: over,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s, nil
}

// trusting returns the system's certificates with those of a file; nil: the system's.
func trusting(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	text, err := os.ReadFile(file)
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s has no certificate in PEM", file)
	}
	return pool, err
}

// attemptError is a failed attempt to send an event.
type attemptError struct {
	err error
	// target says that the target fails all events now: no other event need be tried.
	target bool
	after  time.Duration // that the target asks for; 0: it does not
}

func (e *attemptError) Error() string { return e.err.Error() }
func (e *attemptError) Unwrap() error { return e.err }

// send sends an event. The error is an *attemptError, and does not show the target's URL.
func (s *sender) send(ctx context.Context, source string, e wire.Event) error {
	body, header, err := newCloudEvent(source, e).encode(s.Binary)
	if err != nil {
		return &attemptError{err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(body))
	if err != nil {
		return &attemptError{err: errors.New("the URL is invalid")}
	}
	req.Header = header
	req.Header.Set("User-Agent", "lighter")
	if s.secret != nil {
		req.Header.Set(wire.SignatureHeader, sign(s.secret.Get(ctx), time.Now(), body))
	}
	res, err := s.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) { // it quotes the URL
			err = u.Err
		}
		return &attemptError{err: err, target: true}
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) // the answer says nothing more
	if res.StatusCode/100 == 2 {
		return nil
	}
	return &attemptError{
		err: fmt.Errorf("the target has answered %d %s", res.StatusCode, http.StatusText(res.StatusCode)),
		target: res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests ||
			res.StatusCode == http.StatusRequestTimeout,
		after: retryAfter(res.Header.Get("Retry-After"), time.Now()),
	}
}

// retryAfter parses a header Retry-After; 0: it has no valid time in the future.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		return min(max(time.Duration(seconds)*time.Second, 0), maxRest)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), maxRest)
	}
	return 0
}
