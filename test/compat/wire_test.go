package compat

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"lighter/format/chunk"
	"lighter/format/index"
	"lighter/format/pack"
	"lighter/store"
	"lighter/store/origin"
	"lighter/test/testkit/example"
	"lighter/wire"
	"lighter/wire/client"
)

// exchange is one request of a node or a command, and the hub's answer.
type exchange struct {
	Method string `json:"method"`
	Path   string `json:"path"` // with the query
	Header header `json:"header,omitzero"`
	Body   []byte `json:"body,omitempty"`
	Answer struct {
		Status int    `json:"status"`
		Header header `json:"header"`
		Body   []byte `json:"body,omitempty"`
		// Text is used instead of Body if the body is text.
		Text string `json:"text,omitempty"`
	} `json:"answer"`
}

// header is the part of an HTTP header that the wire's description names.
type header struct {
	ContentType  string `json:"contentType,omitempty"`
	CacheControl string `json:"cacheControl,omitempty"`
	ETag         string `json:"etag,omitempty"`
	IfNoneMatch  string `json:"ifNoneMatch,omitempty"`
	Copy         string `json:"copy,omitempty"`
	Missing      string `json:"missing,omitempty"`

	Authorization string `json:"authorization,omitempty"`
}

func headerOf(h http.Header) header {
	return header{h.Get("Content-Type"), h.Get("Cache-Control"), h.Get("ETag"), h.Get("If-None-Match"),
		h.Get(wire.CopyHeader), h.Get(wire.MissingHeader), h.Get("Authorization")}
}

func (h header) writeTo(to http.Header) {
	for key, value := range map[string]string{"Content-Type": h.ContentType, "Cache-Control": h.CacheControl,
		"ETag": h.ETag, "If-None-Match": h.IfNoneMatch, wire.CopyHeader: h.Copy, wire.MissingHeader: h.Missing,
		"Authorization": h.Authorization} {
		if value != "" {
			to.Set(key, value)
		}
	}
}

// send sends the request to a hub, and returns the exchange with that hub's answer.
func (x exchange) send(t *testing.T, hub string) exchange {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), x.Method, hub+x.Path, bytes.NewReader(x.Body))
	noError(t, err)
	x.Header.writeTo(req.Header)
	res, err := http.DefaultTransport.RoundTrip(req)
	noError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	noError(t, err)
	x.Answer.Status, x.Answer.Header, x.Answer.Body, x.Answer.Text = res.StatusCode, headerOf(res.Header), body, ""
	if kind := x.Answer.Header.ContentType; kind == "application/json" || kind == "text/plain" {
		x.Answer.Body, x.Answer.Text = nil, string(body)
	}
	return x
}

// answer writes the stored answer.
func (x exchange) answer(w http.ResponseWriter) {
	x.Answer.Header.writeTo(w.Header())
	w.WriteHeader(x.Answer.Status)
	_, _ = io.WriteString(w, string(x.Answer.Body)+x.Answer.Text) // the client sees what is missing
}

// exchanges returns the requests of a node and of commands of an earlier version to the hub of
// hubRoot, with the answers.
func exchanges(t *testing.T) (all []exchange) {
	decode(t, example.Stored(t, "wire-1.json", func() []byte {
		hub, stop := startHub(t, hubRoot(t))
		defer stop()
		return encode(t, overheard(t, hub, speak))
	}), &all)
	return all
}

// overheard returns the requests that speak sends to a hub, with the answers.
func overheard(t *testing.T, hub string, speak func(t *testing.T, url string)) (all []exchange) {
	t.Helper()
	var mu sync.Mutex
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		x := exchange{Method: req.Method, Path: req.URL.RequestURI(), Header: headerOf(req.Header), Body: body}
		x = x.send(t, hub)
		mu.Lock()
		all = append(all, x)
		mu.Unlock()
		x.answer(w)
	}))
	defer between.Close()
	speak(t, between.URL)
	return all
}

// TestNodeOfToday sends the requests of a node of today. It gets the answers of a hub of an earlier
// version.
func TestNodeOfToday(t *testing.T) {
	all := exchanges(t)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for _, x := range all {
			if x.Method == req.Method && x.Path == req.URL.RequestURI() &&
				x.Header.IfNoneMatch == req.Header.Get("If-None-Match") {
				x.answer(w)
				return
			}
		}
		t.Errorf("%s %s: a hub of an earlier version was never asked this", req.Method, req.URL)
		http.NotFound(w, req)
	}))
	defer hub.Close()
	speak(t, hub.URL)
}

// TestHubOfToday sends the requests of an earlier version to a hub of today.
func TestHubOfToday(t *testing.T) {
	all := exchanges(t)
	hub, _ := startHub(t, hubRoot(t))
	for _, x := range all {
		x.check(t, hub)
	}
}

// repeat sends the request to a hub of today, and compares the answer's status and header. what
// names the request.
func (x exchange) repeat(t *testing.T, hub string) (got exchange, what string) {
	t.Helper()
	got, what = x.send(t, hub), x.Method+" "+x.Path
	equal(t, what+": status", got.Answer.Status, x.Answer.Status)
	equal(t, what+": header", got.Answer.Header, x.Answer.Header)
	return got, what
}

// check is repeat, and compares the answer's body.
func (x exchange) check(t *testing.T, hub string) {
	t.Helper()
	got, what := x.repeat(t, hub)
	if strings.Contains(x.Answer.Header.CacheControl, "immutable") && !bytes.Equal(got.Answer.Body, x.Answer.Body) {
		t.Errorf("%s: got other bytes than before", what)
	}
	if x.Answer.Header.ContentType == "application/json" && x.Method == http.MethodGet && x.Answer.Status < 400 {
		hasAll(t, what, parse(t, got.Answer.Text), parse(t, x.Answer.Text))
	}
}

func parse(t *testing.T, text string) (v any) {
	t.Helper()
	decode(t, []byte(text), &v)
	return v
}

// hasAll checks that an answer has all members of an earlier one, with equal values. It may have
// more members.
func hasAll(t *testing.T, path string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		for key, value := range want {
			if strings.HasPrefix(key, "unique") {
				value = object[key] // it is computed in the background
			}
			if _, has := object[key]; !ok || !has {
				t.Errorf("%s: got no %q", path, key)
				continue
			}
			hasAll(t, path+"."+key, object[key], value)
		}
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			t.Errorf("%s: got %d elements, want %d", path, len(list), len(want))
			return
		}
		for i := range want {
			hasAll(t, path+"[]", list[i], want[i])
		}
	default:
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
}

// speak sends a hub all kinds of requests that nodes and commands send about an image, and checks
// the answers.
func speak(t *testing.T, url string) {
	t.Helper()
	c := newClient(t, url)
	images, err := c.Images(t.Context(), imageName)
	noError(t, err)
	if len(images) != 1 || images[0].State != wire.StateReady || images[0].Platform != "linux/amd64" {
		t.Fatalf("got images %+v, want one that is ready", images)
	}
	image := images[0]
	statement := speakOfStatements(t, c, image)
	hub := failover(t, url)
	speakOfChunks(t, hub, statement)

	inspected, err := c.Inspect(t.Context(), imageName)
	noError(t, err)
	if len(inspected) != 1 || len(inspected[0].Layers) != 2 || inspected[0].Files != 2 {
		t.Errorf("got inspection %+v, want one image of two layers and two files", inspected)
	}
	starts, err := c.Starts(t.Context(), imageName, "")
	noError(t, err)
	if len(starts) != 1 || len(starts[0].Workloads) != 1 || len(starts[0].Packs) != 1 {
		t.Errorf("got starts %+v, want one workload and one startup pack", starts)
	}
	traces, err := c.ExportTraces(t.Context(), imageName, "")
	noError(t, err)
	if !strings.Contains(string(traces), "/etc/large") {
		t.Errorf("got traces %q, want one that reads /etc/large", traces)
	}
	noError(t, c.ImportTraces(t.Context(), imageName, "", traces))
	noError(t, hub.SendTrace(t.Context(), statement.Tree, started))
	last, err := c.Add(t.Context(), wire.Add{Name: imageName}, func(wire.Progress) {})
	noError(t, err)
	equal(t, "tree of the image that is added again", last.Images[0].Tree, image.Tree)
}

// speakOfStatements verifies what a hub says about an image, and returns the statement of its tree.
func speakOfStatements(t *testing.T, c *client.Client, image wire.Image) *index.Statement {
	t.Helper()
	keys, err := c.Keys(t.Context())
	noError(t, err)
	manifest, err := c.Manifest(t.Context(), image.Digest)
	noError(t, err)
	noError(t, manifest.Image.Verify(image.Digest, keys))
	equal(t, "layers", len(manifest.DiffIDs), 2)
	base := manifest.DiffIDs[0] // the lowest layer's chainID
	chain, err := c.Chain(t.Context(), base)
	noError(t, err)
	if !chain.Complete || len(chain.Above) != 1 || chain.Above[0].Chain != image.Chain {
		t.Fatalf("got chain %+v, want all chains above it: %s", chain, image.Chain)
	}
	noError(t, chain.Above[0].Statement.Verify(image.Chain, keys))
	s, err := c.Tree(t.Context(), image.Chain)
	noError(t, err)
	noError(t, s.Verify(image.Chain, keys))
	equal(t, "tree", s.Tree.String(), image.Tree)
	if _, err := c.Chain(t.Context(), digest); err == nil {
		t.Error("the hub knows a chain that it never had")
	}
	return s
}

func failover(t *testing.T, url string) *origin.Failover {
	t.Helper()
	f, err := origin.New(quiet, client.Options{URL: url})
	noError(t, err)
	return f
}

// speakOfChunks fetches an index with its locations and chunks, and verifies them.
func speakOfChunks(t *testing.T, hub *origin.Failover, s *index.Statement) {
	t.Helper()
	var extentMap, locations bytes.Buffer
	var header index.Header
	noError(t, hub.Index(t.Context(), s.Tree, func(plain io.Reader) (err error) {
		header, err = index.Receive(plain, s.Tree, &extentMap, io.Discard)
		return err
	}))
	take := func(plain io.Reader) error {
		_, err := io.Copy(&locations, plain)
		return err
	}
	noError(t, hub.Locations(t.Context(), s.Tree, chunk.ID{}, take))
	m, err := index.OpenMap(bytes.NewReader(extentMap.Bytes()), s.Tree, index.NewPages(1))
	noError(t, err)
	l, err := index.OpenLocations(bytes.NewReader(locations.Bytes()), int64(locations.Len()), s.Tree, header.Extents)
	noError(t, err)
	equal(t, "startup packs", len(l.Startups()), 1)
	for i := range header.Extents {
		extent, err := m.Extent(i)
		noError(t, err)
		unit, err := l.Unit(i)
		noError(t, err)
		check := func(a store.Answer) error {
			encoded, err := io.ReadAll(a.Body)
			noError(t, err)
			decoded, err := pack.DecodeUnit(encoded)
			noError(t, err)
			plain, err := decoded.Lookup(extent.ID)
			noError(t, err)
			return chunk.Ref{ID: extent.ID, Length: extent.Length}.Check(plain)
		}
		noError(t, hub.FetchUnit(t.Context(), unit, check))
		noError(t, hub.Fetch(t.Context(), chunk.Ref{ID: extent.ID}, check))
	}
}
