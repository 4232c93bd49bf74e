package registries

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lighter/hub/pull"
)

const (
	secret = "p4ssw0rd-of-the-hub"
	blob   = "sha256:" + "0000000000000000000000000000000000000000000000000000000000000000"
)

// startPrivate starts a registry that wants the password secret, and returns its host.
func startPrivate(t *testing.T) (host string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, password, _ := req.BasicAuth(); password != secret {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "x")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// loginFile writes a file as Docker's config.json, with the hub's login.
func loginFile(t *testing.T, host string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	text := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte("hub:"+secret)))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// open returns the registries of tables.
func open(t *testing.T, tables ...Registry) *Registries {
	t.Helper()
	if err := Check(tables); err != nil {
		t.Fatal(err)
	}
	r, err := New(tables, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// source opens a repository.
func source(t *testing.T, r *Registries, repository string) *pull.Source {
	t.Helper()
	s, err := r.Source(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Users' requests get the hub's login only where the configuration allows it. A login of theirs
// goes before it.
func TestAdds(t *testing.T) {
	t.Parallel()
	host := startPrivate(t)
	path := loginFile(t, host)
	for _, add := range []bool{false, true} {
		r := open(t, Registry{Reached: Reached{Host: "127.0.0.1", Private: true, Logins: path}, Add: add})
		for user, want := range map[string]bool{"": add, "wrong": false, secret: true} {
			ref, err := pull.ParseRepository(host + "/a")
			if err != nil {
				t.Fatal(err)
			}
			var a Access
			if user != "" {
				a.Login.Username, a.Login.Password = "user", user
			}
			s, err := r.Open(t.Context(), ref, a)
			if err == nil {
				err = s.Has(t.Context(), blob, 1)
			}
			if (err == nil) != want {
				t.Errorf("add = %t, password %q: error %v, want none: %t", add, user, err, want)
			}
		}
	}
}

// Only a table with a login may allow users to add images with it.
func TestAddNeedsALogin(t *testing.T) {
	t.Parallel()
	err := Check([]Registry{{Reached: Reached{Host: "a.example.org"}, Add: true}})
	if err == nil || !strings.Contains(err.Error(), "registry 1 (a.example.org): add is for") {
		t.Errorf("error %v, want it to mention add", err)
	}
}

// The source of a registry that rests fails with a RestError, which is the registry's, not an
// answer about the blob. Each rest is counted once.
func TestRest(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/v2/" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	r := open(t, Registry{Reached: Reached{Host: host, Private: true}})
	s := source(t, r, host+"/a")
	for range 2 {
		_, err := io.ReadAll(s.Blob(t.Context(), blob, 1))
		if rest := (*RestError)(nil); !errors.As(err, &rest) || rest.Host != host || !rest.Until.After(time.Now()) {
			t.Errorf("error %v, want a RestError of %s", err, host)
		}
	}
	if _, err := r.Source(t.Context(), host+"/other"); !errors.Is(err, pull.ErrSource) {
		t.Errorf("log in to a host that rests: error %v, want %v", err, pull.ErrSource)
	}
	if n := testutil.ToFloat64(r.metrics.rests.WithLabelValues(host)); n != 1 {
		t.Errorf("%v rests are counted, want 1", n)
	}
}

// The hub reads no more blobs at a time than a table allows.
func TestConnections(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	blobs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/v2/" {
			return
		}
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		time.Sleep(10 * time.Millisecond)
		now.Add(-1)
		_, _ = io.WriteString(w, "x")
	}))
	defer blobs.Close()
	host := strings.TrimPrefix(blobs.URL, "http://")
	r := open(t, Registry{Reached: Reached{Host: host, Private: true, Connections: 2}})
	var group sync.WaitGroup
	for range 8 {
		s := source(t, r, host+"/a")
		group.Go(func() {
			reader := s.Blob(t.Context(), blob, 1)
			_, _ = io.ReadAll(reader) // it has another digest
			_ = reader.Close()
		})
	}
	group.Wait()
	if most.Load() > 2 {
		t.Errorf("%d blobs were read at a time, want 2 at most", most.Load())
	}
}

// The labels of the metrics are the tables, not the hosts that users name.
func TestMetrics(t *testing.T) {
	t.Parallel()
	r := open(t, Registry{Reached: Reached{Host: "*.example.org"}})
	for _, host := range []string{"a.example.org", "b.example.org", "c.example", "d.example"} {
		for _, status := range []int{200, 201, 429, 404, 0, 777} {
			r.metrics.Requested(r.all.Table(host).Host, status)
		}
	}
	want := `# HELP lighter_hub_registry_requests_total Requests to other registries, by table of the configuration and status.
# TYPE lighter_hub_registry_requests_total counter
`
	for code, n := range map[string]string{"2xx": "4", "404": "2", "429": "2", "error": "4"} {
		for _, label := range []string{"*.example.org", otherLabel} {
			want += `lighter_hub_registry_requests_total{code="` + code + `",registry="` + label + `"} ` + n + "\n"
		}
	}
	const name = "lighter_hub_registry_requests_total"
	if err := testutil.CollectAndCompare(r, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
}

// A hub's table has the keys that nodes have, too, and its own, in one table.
func TestTableOfAFile(t *testing.T) {
	t.Parallel()
	type file struct {
		Registries []Registry `toml:"registry"`
	}
	const text = "[[registry]]\nhost = 'a.example.org'\nlogins = '/logins.json'\nadd = true\npush_names = ['p']\n"
	var got file
	err := toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(&got)
	want := Registry{Reached: Reached{Host: "a.example.org", Logins: "/logins.json"}, Add: true,
		PushNames: []string{"p"}}
	if err != nil || len(got.Registries) != 1 || !reflect.DeepEqual(got.Registries[0], want) {
		t.Errorf("got %+v, %v, want %+v", got.Registries, err, want)
	}
	written, err := toml.Marshal(got)
	if err != nil || !bytes.Contains(written, []byte("\nhost = ")) || !bytes.Contains(written, []byte("\nadd = ")) {
		t.Errorf("written: %s, %v, want host and add in one table", written, err)
	}
}
