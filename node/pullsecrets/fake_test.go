package pullsecrets

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lighter/test/testkit/certificate"
)

const nodeName = "worker-1"

// apiServer is a strict API server: it refuses all that Kubernetes does not allow a kubelet, and
// requests that it does not know.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex // guards the following
	version int
	pods    map[string]map[string]any // by UID
	secrets map[string]map[string]any // by namespace/name
	events  []string
	changed chan struct{} // closed when events or isDown change
	got     []string      // paths of secrets
	lists   int
	isDown  bool
	expired bool // watches of old versions are refused
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	c := &apiServer{version: 10, pods: map[string]map[string]any{}, secrets: map[string]map[string]any{},
		changed: make(chan struct{})}
	c.Server = httptest.NewUnstartedServer(c)
	c.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	c.StartTLS()
	t.Cleanup(func() { c.with(func() { c.isDown = true }); c.Close() })
	return c
}

// with changes the cluster under its lock.
func (c *apiServer) with(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// put adds or changes a pod on the node. An empty image removes it.
func (c *apiServer) put(uid, namespace, image string, secrets ...string) {
	c.with(func() {
		c.version++
		refs := []map[string]string{}
		for _, name := range secrets {
			refs = append(refs, map[string]string{"name": name})
		}
		kind := "MODIFIED"
		if c.pods[uid] == nil {
			kind = "ADDED"
		}
		pod := map[string]any{"metadata": map[string]any{"uid": uid, "namespace": namespace,
			"creationTimestamp": time.Unix(int64(c.version), 0).UTC(), "resourceVersion": fmt.Sprint(c.version)},
			"spec": map[string]any{"imagePullSecrets": refs, "containers": []any{map[string]any{"image": image}}}}
		if c.pods[uid] = pod; image == "" {
			kind = "DELETED"
			delete(c.pods, uid)
		}
		c.event(kind, pod)
	})
}

// event adds an event for watches. mu is held.
func (c *apiServer) event(kind string, object any) {
	b, _ := json.Marshal(map[string]any{"type": kind, "object": object}) // maps of texts
	c.events = append(c.events, string(b))
}

// putSecret sets a secret of a type.
func (c *apiServer) putSecret(name, kind, key, text string) {
	c.with(func() {
		c.secrets[name] = map[string]any{"type": kind, "data": map[string][]byte{key: []byte(text)}}
	})
}

// putLogin sets a secret with a login of a registry.
func (c *apiServer) putLogin(name, host, password string) {
	c.putSecret(name, "kubernetes.io/dockerconfigjson", ".dockerconfigjson",
		fmt.Sprintf(`{"auths":{%q:{"username":"u","password":%q}}}`, host, password))
}

func (c *apiServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	query := req.URL.Query()
	refuse := func(code int, text string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","message":%q}`, text)
	}
	namespace, name, isSecret := strings.Cut(strings.TrimPrefix(req.URL.Path, "/api/v1/namespaces/"), "/secrets/")
	switch {
	case c.isDown:
		refuse(http.StatusServiceUnavailable, "it is down")
	case req.Method != http.MethodGet || req.TLS.PeerCertificates[0].Subject.CommonName != "system:node:"+nodeName:
		refuse(http.StatusForbidden, "not a kubelet's request")
	case isSecret:
		c.got = append(c.got, namespace+"/"+name)
		if c.secrets[namespace+"/"+name] == nil {
			refuse(http.StatusNotFound, "no such secret")
			return
		}
		_ = json.NewEncoder(w).Encode(c.secrets[namespace+"/"+name]) // fails if the client has gone
	case req.URL.Path != "/api/v1/pods" || query.Get("fieldSelector") != "spec.nodeName="+nodeName:
		refuse(http.StatusForbidden, "not the pods of the kubelet's node")
	case query.Get("watch") == "true":
		c.watch(w, req)
	default:
		c.lists++
		items := []any{}
		for _, pod := range c.pods {
			items = append(items, pod)
		}
		c.events = nil
		_ = json.NewEncoder(w).Encode(map[string]any{
			"metadata": map[string]any{"resourceVersion": fmt.Sprint(c.version)}, "items": items})
	}
}

// watch sends events until the client has gone, or the API server goes down. mu is held, but not
// while it waits.
func (c *apiServer) watch(w http.ResponseWriter, req *http.Request) {
	if c.expired {
		fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}`)
		c.expired = false
		return
	}
	w.(http.Flusher).Flush()
	for sent := 0; !c.isDown; {
		for ; sent < len(c.events); sent++ {
			fmt.Fprintln(w, c.events[sent])
			w.(http.Flusher).Flush()
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-req.Context().Done():
		}
		c.mu.Lock()
		if req.Context().Err() != nil {
			return
		}
	}
}

// kubeconfig writes the kubeconfig of the node's kubelet.
func (c *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	certificate.New(t, "system:node:"+nodeName).Write(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	text := `apiVersion: v1
kind: Config
current-context: default
contexts: [{name: default, context: {cluster: local, user: kubelet}}]
clusters: [{name: local, cluster: {server: "` + c.URL + `", certificate-authority: ca.pem}}]
users: [{name: kubelet, user: {client-certificate: cert.pem, client-key: key.pem}}]
`
	for name, content := range map[string]string{"ca.pem": string(ca), "kubelet.conf": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "kubelet.conf")
}

// logged is a log that a test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// run runs the pull secrets with a kubeconfig until the test ends.
func run(t *testing.T, kubeconfig, node string) (*Secrets, *logged) {
	t.Helper()
	log := &logged{}
	s := New(kubeconfig, node, slog.New(slog.NewTextHandler(log, nil)))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return s, log
}
