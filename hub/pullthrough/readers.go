package pullthrough

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"lighter/hub/pull"
	"lighter/hub/registry"
)

const (
	// permitTime is how long a registry's answer counts that a client may read a repository. While
	// the registry cannot be asked, it counts for stalePermitTime.
	permitTime      = 5 * time.Minute
	stalePermitTime = 24 * time.Hour
	// refusedTime is how long an answer counts that an object does not exist, or may not be read.
	refusedTime = 10 * time.Second
	// maxPermits, maxAnswered, maxRefused and maxSources bound what is remembered of clients. The
	// least recently used is forgotten first.
	maxPermits  = 16_384
	maxAnswered = 4096
	maxRefused  = 4096
	maxSources  = 1024
	sourceTime  = 10 * time.Minute
	// askTimeout bounds one question to a registry, for all clients that wait for the answer.
	askTimeout = 30 * time.Second
)

// Login says as whom a registry is read.
type Login struct {
	Own                bool // with the hub's own login
	Username, Password string
}

// Anonymous reports whether there is no login.
func (l Login) Anonymous() bool { return l == Login{} }

// reader is a client that reads a repository, with its login.
type reader struct {
	*request
	login Login
	key   string    // of repository and login; it tells nothing of the password
	came  time.Time // when the client asked the hub
}

// everybody returns the login with which all clients of the hub may read a registry.
func (r *Registry) everybody() Login { return Login{Own: r.Readers == Hub} }

// Admit decides whether an image of another registry may be ingested: everybody who reaches the hub
// can read what it has ingested. It returns an error unless the registry gives the manifest to
// everybody: to clients without a login or, if the rule says so, to the hub. which is a tag or
// digest, and has to stand for the manifest with that digest. Errors are ErrMoved, ErrPrivate, or
// say that the registry cannot be asked now.
func (s *Service) Admit(ctx context.Context, r *Registry, repository, which, digest string) error {
	everybody := s.newReader(&request{registry: r, repository: repository}, r.everybody())
	err := s.ask(ctx, everybody, "admit "+which+" as "+digest, func(ctx context.Context, from *pull.Source) error {
		d, err := from.Stat(ctx, which)
		if err == nil && d.Digest == "" { // the registry does not say it
			var m registry.Manifest
			if m, err = from.Manifest(ctx, which); err == nil {
				d = descriptor(m)
			}
		}
		if err == nil && isTag(which) {
			s.tags.Add(repository+":"+which, tag{d, time.Now()})
		}
		return err
	})
	switch {
	case errors.Is(err, errMissing) || errors.Is(err, errDenied):
		return fmt.Errorf("%w: %w", ErrPrivate, err)
	case err != nil || !isTag(which):
		return err
	}
	if now, ok := s.tags.Get(repository + ":" + which); !ok || now.Digest.String() != digest {
		return ErrMoved
	}
	return nil
}

// readerOf returns who makes a request. The hub's own administrators are nobody to other
// registries: their token must not be sent there.
func (s *Service) readerOf(r *request) *reader {
	var login Login
	switch r.registry.Readers {
	case Hub:
		login = Login{Own: true}
	case Credentials:
		if user, password, ok := r.BasicAuth(); ok && !s.config.IsAdministrator(r.Request) {
			login = Login{Username: user, Password: password}
		}
	}
	return s.newReader(r, login)
}

// newReader returns a client that comes now.
func (s *Service) newReader(r *request, login Login) *reader {
	return &reader{request: r, login: login, key: s.keyOf(r.repository, login), came: time.Now()}
}

func (s *Service) keyOf(repository string, l Login) string {
	sum := hmac.New(sha256.New, s.secret)
	own := byte(0)
	if l.Own {
		own = 1
	}
	sum.Write([]byte{own})
	for _, text := range []string{l.Username, l.Password} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		sum.Write([]byte(text))
	}
	return repository + " " + string(sum.Sum(nil))
}

// open opens the reader's repository with the reader's login. Opened repositories are kept for
// sourceTime.
func (s *Service) open(rd *reader) func(ctx context.Context) (*pull.Source, error) {
	return func(ctx context.Context) (*pull.Source, error) {
		if from, ok := s.sources.Get(rd.key); ok {
			return from, nil
		}
		return once(ctx, s, "open "+rd.key, func(ctx context.Context) (*pull.Source, error) {
			from, err := s.config.Open(ctx, rd.repository, rd.login)
			if err != nil {
				return nil, err
			}
			s.sources.Add(rd.key, from)
			return from, nil
		})
	}
}

// permit returns an error unless the registry lets the reader read the repository. It asks for the
// object of the request, unless the registry has lately shown another object to this reader.
func (s *Service) permit(ctx context.Context, rd *reader) error {
	at, known := s.permits.Get(rd.key)
	if known && time.Since(at) < permitTime {
		return nil
	}
	err := s.ask(ctx, rd, "permit "+rd.kind+" "+rd.which, func(ctx context.Context, from *pull.Source) error {
		if rd.kind == blobs {
			size, err := from.BlobSize(ctx, rd.which)
			if err == nil {
				s.sizes.Add(rd.repository+"@"+rd.which, size)
			}
			return err
		}
		_, err := from.Stat(ctx, rd.which)
		return err
	})
	if errors.Is(err, errUnavailable) && known && time.Since(at) < stalePermitTime {
		return nil
	}
	return err
}

// ask asks the reader's registry something, once for all clients that ask the same at the same
// time. A client that came before the last answer does not ask again. An error is errMissing,
// errDenied or errUnavailable, or ctx has ended.
func (s *Service) ask(
	ctx context.Context, rd *reader, what string, fn func(ctx context.Context, from *pull.Source) error,
) error {
	key := rd.key + " " + what
	if refused, ok := s.refused.Get(key); ok {
		return refused
	}
	_, err := once(ctx, s, key, func(ctx context.Context) (struct{}, error) {
		if at, ok := s.answered.Get(key); ok && at.After(rd.came) {
			return struct{}{}, nil
		}
		if until := s.rests.until(rd.registry.Host); time.Now().Before(until) {
			return struct{}{}, fmt.Errorf("%w: it did not answer, and is asked again at %s", errUnavailable,
				until.Format(time.TimeOnly))
		}
		from, err := s.open(rd)(ctx)
		if err == nil {
			err = fn(ctx, from)
		}
		err = s.judge(rd, err)
		switch {
		case err == nil:
			s.permits.Add(rd.key, time.Now())
			s.answered.Add(key, time.Now())
		case !errors.Is(err, errUnavailable):
			s.refused.Add(key, err)
		}
		if errors.Is(err, errDenied) {
			s.permits.Remove(rd.key)
		}
		return struct{}{}, err
	})
	return err
}

// once calls fn once for all callers with the same key that wait at the same time. fn goes on when
// they have gone, for askTimeout at most.
func once[T any](
	ctx context.Context, s *Service, key string, fn func(context.Context) (T, error),
) (value T, err error) {
	done := s.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(s.life, askTimeout)
		defer cancel()
		return fn(ctx)
	})
	select {
	case <-ctx.Done():
		return value, context.Cause(ctx)
	case result := <-done:
		value, _ = result.Val.(T)
		return value, result.Err
	}
}
