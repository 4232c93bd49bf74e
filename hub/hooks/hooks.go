// Package hooks receives webhooks of other registries and of what builds images.
//
// An event is a hint to look, not a command. It is stored, answered with 202 after the commit, and
// then a job asks the registry for the truth. So the order of events and duplicates do not matter,
// an event that comes during a look causes another one, and an acknowledged event is not lost. If
// the catalog is away, the answer is 503, and the sender tries again.
//
// The registry's address is that of the configured hook, whatever an event says. A sender knows the
// hook's secret, or signs the body with it. Bodies, events of a body, and stored hints are bounded.
//
// Hazard: senders lose events, because most of them keep their queues in memory. A list that is
// synchronized regularly finds what they have lost.
package hooks

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"lighter/hub/answer"
	"lighter/hub/catalog"
	"lighter/hub/report"
	"lighter/renewed"
	"lighter/wire"
)

const (
	maxBody   = 1 << 20 // bytes
	maxEvents = 1000    // of a body
)

// Results of requests.
const (
	resultAccepted = "accepted" // hints were stored
	resultIgnored  = "ignored"  // the events have no effect
	resultRefused  = "refused"  // a wrong secret
	resultInvalid  = "invalid"  // no events, or too many
	resultFailed   = "failed"   // the sender is to try again
)

// Results returns all results of requests.
func Results() []string {
	return []string{resultAccepted, resultIgnored, resultRefused, resultInvalid, resultFailed}
}

// Server receives the events of all hooks.
type Server struct {
	hooks  map[string]*hook
	bodies *answer.Bodies
	// inbox returns the inbox of the domain to which a repository belongs; name is as
	// wire.Ref.NamedRepository returns it.
	inbox func(name string) *Inbox
	log   *slog.Logger

	mu     sync.Mutex // guards counts
	counts map[[2]string]int64
}

// hook is a hook with its secret.
type hook struct {
	Hook
	secret *renewed.Value[string]
}

// NewServer returns a server. It reads the files of the hooks.
func NewServer(
	hooks []Hook, bodies *answer.Bodies, inbox func(name string) *Inbox, log *slog.Logger,
) (*Server, error) {
	s := &Server{hooks: map[string]*hook{}, bodies: bodies, inbox: inbox, log: log, counts: map[[2]string]int64{}}
	for _, h := range hooks {
		secret, err := renewed.Read(log, func() (string, error) { return wire.ReadSecret(h.SecretFile) }, h.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("hook %q: secret_file: %w", h.Name, err)
		}
		s.hooks[h.Name] = &hook{h, secret}
	}
	return s, nil
}

// Count calls each with the number of requests of each hook, by result.
func (s *Server) Count(each func(hook, result string, n int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.hooks {
		for _, result := range Results() {
			each(name, result, s.counts[[2]string{name, result}])
		}
	}
}

// refusal is an answer that is not 2xx.
type refusal struct {
	status int
	result string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// ServeHTTP answers a request to /hooks/NAME.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := s.hooks[strings.TrimPrefix(req.URL.Path, wire.HooksPrefix)]
	switch {
	case h == nil:
		answer.Error(w, http.StatusNotFound, "this hub has no such hook: add it to the hub's configuration, as a "+
			"table [[hook]] with its name")
		return
	case req.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		answer.Error(w, http.StatusMethodNotAllowed, "events are sent with POST")
		return
	}
	hints, err := s.receive(w, req, h)
	result := resultAccepted
	if len(hints) == 0 {
		result = resultIgnored
	}
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		result = refused.result
		if refused.status >= 500 {
			s.log.Error("an event of a hook was not stored", "hook", h.Name, "err", report.Logged(err))
		}
		if refused.status == http.StatusTooManyRequests || refused.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "30")
		}
		answer.Error(w, refused.status, report.Public(err))
	} else {
		w.WriteHeader(http.StatusAccepted)
	}
	s.mu.Lock()
	s.counts[[2]string{h.Name, result}]++
	s.mu.Unlock()
}

// receive stores the hints of a request and returns them. The error is a *refusal.
func (s *Server) receive(w http.ResponseWriter, req *http.Request, h *hook) ([]catalog.Hint, error) {
	secret := h.secret.Get(req.Context())
	wrong := &refusal{http.StatusUnauthorized, resultRefused, errors.New("the secret or the signature is wrong")}
	if h.SignatureHeader == "" && !knows(h.secrets(req), secret) {
		return nil, wrong
	}
	body, release, err := s.bodies.Read(w, req, maxBody)
	if err != nil {
		result := resultInvalid
		if errors.Is(err, report.ErrBusy) {
			result = resultFailed
		}
		return nil, &refusal{answer.Status(err), result, err}
	}
	defer release()
	if h.SignatureHeader != "" && !isSigned(req.Header.Get(h.SignatureHeader), h.SignaturePrefix, body, secret) {
		return nil, wrong
	}
	events, err := decoders[h.Kind](body)
	if err == nil && len(events) > maxEvents {
		err = fmt.Errorf("the body has %d events: want %d at most", len(events), maxEvents)
	}
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, resultInvalid, err}
	}
	byInbox := map[*Inbox][]catalog.Hint{}
	var all []catalog.Hint
	for _, e := range events {
		name, hint, ok := h.hint(e)
		if ok {
			inbox := s.inbox(name)
			byInbox[inbox], all = append(byInbox[inbox], hint), append(all, hint)
		}
	}
	for inbox, hints := range byInbox {
		if err := inbox.put(req.Context(), hints); err != nil {
			status := answer.Status(err)
			if status == http.StatusInternalServerError {
				status = http.StatusServiceUnavailable // the sender tries again
			}
			return nil, &refusal{status, resultFailed, err}
		}
	}
	return all, nil
}

// tag matches what may be a tag.
var tag = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// digestForm matches a digest.
var digestForm = regexp.MustCompile(`^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$`)

// hint returns the hint of an event, and the name of its repository in the hub. ok is false if the
// event is to have no effect: it is invalid, about other repositories, or about a deletion that the
// hook must not cause.
func (h *hook) hint(e event) (name string, hint catalog.Hint, ok bool) {
	name, err := h.named(e.repository)
	if err != nil || !h.wants(name) || e.deletion && !h.MayDelete ||
		e.reference != "" && !tag.MatchString(e.reference) && !digestForm.MatchString(e.reference) {
		return "", hint, false
	}
	return name, catalog.Hint{Hook: h.Name, Repository: e.repository, Reference: e.reference}, true
}

// knows reports whether one of the given texts is the secret. It takes the same time for every
// wrong text of a length.
func knows(given []string, secret string) (ok bool) {
	want := sha256.Sum256([]byte(secret))
	for _, text := range given {
		sum := sha256.Sum256([]byte(text))
		ok = subtle.ConstantTimeCompare(sum[:], want[:]) == 1 || ok
	}
	return ok
}

// isSigned reports whether a header has the signature of a body.
func isSigned(header, prefix string, body []byte, secret string) bool {
	text, ok := strings.CutPrefix(strings.TrimSpace(header), prefix)
	given, err := hex.DecodeString(text)
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write(body)
	return ok && err == nil && hmac.Equal(given, sum.Sum(nil))
}
