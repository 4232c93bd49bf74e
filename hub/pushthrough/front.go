package pushthrough

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	lru "github.com/hashicorp/golang-lru/v2"

	"lighter/hub/report"
)

// front is the hub in front of a registry.
type front struct {
	Registry
	service   *Service
	proxy     *httputil.ReverseProxy
	locations *lru.Cache[string, string] // repositories of uploads whose paths do not tell them, by path
}

func newFront(s *Service, r Registry) *front {
	f := &front{Registry: r, service: s, locations: cache(maxLocations)}
	f.proxy = &httputil.ReverseProxy{
		Transport: steady{r.Front, s.config.Stall}, Rewrite: rewrite, ModifyResponse: f.answered,
		ErrorHandler: f.failed, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // about broken connections
	}
	return f
}

// rewrite prepares a request. Front says where it goes.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = withoutNamespace(r.In.URL.RawQuery)
	r.Out.Header.Del("Connection") // no other protocol
	r.Out.Header.Del("Upgrade")
}

// withoutNamespace returns a query without the parameter ns, in which containerd tells a mirror
// which registry it means.
func withoutNamespace(query string) string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if !strings.HasPrefix(part, "ns=") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, "&")
}

// answered handles an answer before the client gets it.
func (f *front) answered(res *http.Response) error {
	f.service.count(passed)
	header := res.Header
	if to := header.Get("Location"); to != "" {
		to = f.throughHub(to)
		header.Set("Location", to)
		f.noteUpload(res, to)
	}
	for i, link := range header["Link"] {
		header["Link"][i] = linkTarget.ReplaceAllStringFunc(link, func(target string) string {
			return "<" + f.throughHub(target[1:len(target)-1]) + ">"
		})
	}
	if p, ok := res.Request.Context().Value(pushedKey{}).(*pushed); ok && res.StatusCode/100 == 2 {
		p.accepted(header.Get("Docker-Content-Digest"))
	}
	if res.StatusCode == http.StatusOK {
		f.notice(res.Request, header.Get("Docker-Content-Digest"))
	}
	return nil
}

var linkTarget = regexp.MustCompile(`<[^>]*>`)

// throughHub returns a URL without scheme and host if it is one of the registry. Other hosts, such
// as those that store blobs, stay.
func (f *front) throughHub(to string) string {
	u, err := url.Parse(to)
	if err != nil || !f.Front.IsHost(u.Host) {
		return to
	}
	u.Scheme, u.Host, u.User = "", "", nil
	return u.String()
}

// noteUpload remembers the repository of an upload whose URL does not tell it.
func (f *front) noteUpload(res *http.Response, to string) {
	u, err := url.Parse(to)
	if err != nil || u.Host != "" || res.StatusCode != http.StatusAccepted || uploadPath.MatchString(u.Path) {
		return
	}
	if repository := f.uploadsTo(res.Request.URL.Path); repository != "" {
		f.locations.Add(u.Path, repository)
	}
}

// failed answers a request that the registry has not answered.
func (f *front) failed(w http.ResponseWriter, req *http.Request, err error) {
	if req.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
	f.service.count(failed)
	f.service.config.Log.Warn("a push cannot be passed on", "registry", f.Rule.Host, "err", report.Logged(err))
	_ = errcode.ServeJSON(w, errcode.ErrorCodeUnavailable.WithMessage(
		"the hub cannot reach the registry "+f.Rule.Host+" now: try again, or push to the registry itself"))
}

// errStalled ends requests.
var errStalled = errors.New("the registry does not go on")

// steady ends requests to a registry that stalls. The timeout does not run while the client is
// waited for.
type steady struct {
	next    http.RoundTripper
	timeout time.Duration
}

// RoundTrip implements http.RoundTripper.
func (s steady) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	expiry := func() *time.Timer {
		t := time.AfterFunc(s.timeout, func() { cancel(errStalled) })
		t.Stop()
		return t
	}
	req = req.WithContext(ctx)
	if req.Body != nil {
		req.Body = &sent{req.Body, expiry(), s.timeout}
	}
	res, err := s.next.RoundTrip(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
		cancel(nil)
		return nil, err
	}
	res.Body = &received{res.Body, expiry(), s.timeout, cancel}
	return res, nil
}

// sent is a request's body. After each piece, the registry has to ask for the next one in time.
type sent struct {
	io.ReadCloser
	expiry  *time.Timer
	timeout time.Duration
}

// Read waits for the client.
func (s *sent) Read(p []byte) (int, error) {
	s.expiry.Stop()
	n, err := s.ReadCloser.Read(p)
	if err == nil {
		s.expiry.Reset(s.timeout)
	}
	return n, err
}

// Close ends the body.
func (s *sent) Close() error {
	s.expiry.Stop()
	return s.ReadCloser.Close()
}

// received is an answer's body. The next piece has to arrive in time.
type received struct {
	io.ReadCloser
	expiry  *time.Timer
	timeout time.Duration
	cancel  context.CancelCauseFunc
}

// Read waits for the registry.
func (r *received) Read(p []byte) (int, error) {
	r.expiry.Reset(r.timeout)
	defer r.expiry.Stop()
	return r.ReadCloser.Read(p)
}

// Close ends the answer.
func (r *received) Close() error {
	r.expiry.Stop()
	r.cancel(nil)
	return r.ReadCloser.Close()
}
