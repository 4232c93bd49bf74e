package pullthrough

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/report"
)

var (
	errMissing     = errors.New("the registry does not have it")
	errDenied      = errors.New("the registry does not let this client read it")
	errUnavailable = errors.New("the registry cannot be read now")
	// ErrPrivate means that not everybody who reaches the hub may read an image.
	ErrPrivate = errors.New("not everybody may read it")
	// ErrMoved means that a tag stands for another manifest.
	ErrMoved = errors.New("the tag stands for another manifest by now")
)

// goneTime is how long a registry that does not answer is not asked.
const goneTime = 5 * time.Second

// kindOf returns errMissing, errDenied or errUnavailable for a registry's error.
func kindOf(err error) error {
	if failed := (*transport.Error)(nil); errors.As(err, &failed) {
		switch failed.StatusCode {
		case http.StatusNotFound:
			return errMissing
		case http.StatusUnauthorized, http.StatusForbidden:
			return errDenied
		}
	}
	return errUnavailable
}

// judge marks a registry's error with its kind. A registry that does not answer rests: clients go
// on to the registry itself meanwhile, or get what is cached. (Package registries lets registries
// rest that ask for it.)
func (s *Service) judge(rd *reader, err error) error {
	if err == nil {
		return nil
	}
	kind, host := kindOf(err), rd.registry.Host
	if kind == errUnavailable {
		s.config.Log.Warn("a registry cannot be read", "registry", host, "err", report.Logged(err))
		if errors.As(err, new(*url.Error)) {
			s.rests.rest(host)
		}
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// rests has the registries that are not asked for goneTime.
type rests struct {
	mu sync.Mutex
	at map[string]time.Time // by host, which is configured
}

func (r *rests) until(host string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at[host]
}

func (r *rests) rest(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = map[string]time.Time{}
	}
	r.at[host] = time.Now().Add(goneTime)
}
