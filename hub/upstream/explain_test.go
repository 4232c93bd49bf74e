package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"lighter/hub/catalog"
	"lighter/hub/pull"
	"lighter/hub/registry"
	"lighter/hub/report"
)

// Clients see only the status of another registry's answer, and no address that the answer names.
func TestErrorsOfOtherRegistriesAreEdited(t *testing.T) {
	u := catalog.Upstream{Repository: "registry.example.org/a"}
	redirected := &url.Error{Op: "Get", URL: "https://storage.internal:9000/b/x?X-Amz-Signature=5ec3e7",
		Err: &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("dial tcp 10.1.2.3:9000: refused")}}
	denied := &transport.Error{StatusCode: http.StatusForbidden, Errors: []transport.Diagnostic{
		{Code: "DENIED", Message: "see https://storage.internal/x?token=5ec3e7"}}}
	for name, c := range map[string]struct {
		err  error
		want string
		is   error
	}{
		"redirect": {redirected, "it cannot be reached (try again when", registry.ErrUnavailable},
		"status":   {denied, "it answers 403 Forbidden (give the hub a login", registry.ErrDenied},
		"no room":  {fmt.Errorf("%w: disk", errNoRoom), "has no room for it: disk", registry.ErrUnavailable},
	} {
		err := errors.Join(explain(u, fmt.Errorf("%w: blob x: %w", pull.ErrSource, c.err)))
		text := report.Reason(err)
		if !errors.Is(err, c.is) || !errors.Is(err, c.err) || !strings.Contains(text, c.want) ||
			!strings.Contains(text, u.Repository) {
			t.Errorf("%s: %q, want %v from %s, with %q", name, text, c.is, u.Repository, c.want)
		}
		for _, secret := range []string{"5ec3e7", "internal", "10.1.2.3"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q has %q", name, text, secret)
			}
		}
	}
}
