package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// API is the part of the Kubernetes API that the agent uses: its own node, and events about it. A
// test server can stand for it. docs/decisions/kubernetes-api.md says why this is no library.
type API struct {
	url   string
	token string // the path of the file: the kubelet replaces it
	http  *http.Client
}

// serviceAccount is where the kubelet puts a pod's credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// requestTimeout bounds each request.
const requestTimeout = 15 * time.Second

// maxAnswer bounds an answer of the API server: a node's object with thousands of images.
const maxAnswer = 16 << 20

// InCluster returns the API of the cluster in which this process runs as a pod.
func InCluster() (*API, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("this is no pod of Kubernetes (KUBERNETES_SERVICE_HOST is not set): " +
			"deploy/kubernetes starts it, and on a machine without a cluster, lighter install systemd is meant")
	}
	return NewAPI("https://"+net.JoinHostPort(host, port), serviceAccount)
}

// NewAPI returns the API at a URL, with the token and ca.crt in a directory.
func NewAPI(url, credentials string) (*API, error) {
	pem, err := os.ReadFile(filepath.Join(credentials, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the certificates of the Kubernetes API: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificates", filepath.Join(credentials, "ca.crt"))
	}
	return &API{url: url, token: filepath.Join(credentials, "token"), http: &http.Client{Timeout: requestTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			MaxIdleConns: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: requestTimeout}}}, nil
}

// Node is what the agent reads of a node.
type Node struct {
	Metadata struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Taints []json.RawMessage `json:"taints"` // written back as they are
	} `json:"spec"`
	Status struct {
		Conditions []Condition `json:"conditions"`
	} `json:"status"`
}

// Condition is a condition of a node.
type Condition struct {
	Type       string    `json:"type"`
	Status     string    `json:"status"` // True, False or Unknown
	Reason     string    `json:"reason"`
	Message    string    `json:"message"`
	Heartbeat  time.Time `json:"lastHeartbeatTime"`
	Transition time.Time `json:"lastTransitionTime"`
}

// condition returns the node's condition of a type.
func (n *Node) condition(name string) Condition {
	for _, c := range n.Status.Conditions {
		if c.Type == name {
			return c
		}
	}
	return Condition{}
}

// Refused is an answer of the API server that is no success.
type Refused struct {
	Code    int
	Message string
}

func (r *Refused) Error() string { return fmt.Sprintf("status %d: %s", r.Code, r.Message) }

// Media types of patches.
const (
	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
)

// Node gets a node.
func (a *API) Node(ctx context.Context, name string) (n Node, err error) {
	return n, a.do(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(name), "", nil, &n)
}

// Nodes lists the nodes with a label.
func (a *API) Nodes(ctx context.Context, label string) ([]Node, error) {
	var list struct {
		Items []Node `json:"items"`
	}
	err := a.do(ctx, http.MethodGet, "/api/v1/nodes?labelSelector="+url.QueryEscape(label), "", nil, &list)
	return list.Items, err
}

// Label sets labels of a node; nil removes one.
func (a *API) Label(ctx context.Context, name string, labels map[string]*string) error {
	return a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name), merge,
		map[string]any{"metadata": map[string]any{"labels": labels}}, nil)
}

// Annotate sets annotations of a node; nil removes one.
func (a *API) Annotate(ctx context.Context, name string, annotations map[string]*string) error {
	return a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name), merge,
		map[string]any{"metadata": map[string]any{"annotations": annotations}}, nil)
}

// untaintTries bounds how often a conflict with another writer is tried again.
const untaintTries = 10

// Untaint removes the taints of a key from a node.
func (a *API) Untaint(ctx context.Context, name, key string) (removed bool, err error) {
	for range untaintTries {
		n, err := a.Node(ctx, name)
		if err != nil {
			return false, err
		}
		rest := []json.RawMessage{}
		for _, raw := range n.Spec.Taints {
			var taint struct{ Key string }
			if err := json.Unmarshal(raw, &taint); err != nil {
				return false, err
			}
			if taint.Key != key {
				rest = append(rest, raw)
			}
		}
		if len(rest) == len(n.Spec.Taints) {
			return false, nil
		}
		// The list is replaced as a whole, so the version says that nobody has changed it
		// meanwhile.
		err = a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name), merge, map[string]any{
			"metadata": map[string]any{"resourceVersion": n.Metadata.ResourceVersion},
			"spec":     map[string]any{"taints": rest}}, nil)
		if refused := (*Refused)(nil); errors.As(err, &refused) && refused.Code == http.StatusConflict {
			continue
		}
		return err == nil, err
	}
	return false, fmt.Errorf("remove the taint %s: the node %s changes all the time", key, name)
}

// SetCondition sets a condition of a node. The kubelet keeps conditions of others.
func (a *API) SetCondition(ctx context.Context, name string, c Condition) error {
	return a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name)+"/status", strategic,
		map[string]any{"status": map[string]any{"conditions": []Condition{c}}}, nil)
}

// RemoveCondition removes a condition of a node.
func (a *API) RemoveCondition(ctx context.Context, name, condition string) error {
	return a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(name)+"/status", strategic,
		map[string]any{"status": map[string]any{"conditions": []map[string]string{
			{"$patch": "delete", "type": condition}}}}, nil)
}

// Limits of the API server for events.
const (
	maxMessage     = 1024
	eventNamespace = "default" // where events about nodes belong
)

// Event reports something about a node. kind is Normal or Warning.
func (a *API) Event(ctx context.Context, n Node, kind, reason, message string) error {
	now := time.Now().UTC()
	stamp := now.Format(time.RFC3339)
	path := "/api/v1/namespaces/" + eventNamespace + "/events"
	return a.do(ctx, http.MethodPost, path, "application/json", map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]any{"namespace": eventNamespace,
			"name": strings.ToLower(n.Metadata.Name + "." + rand.Text()[:16])},
		"involvedObject": map[string]any{"apiVersion": "v1", "kind": "Node", "name": n.Metadata.Name,
			"uid": n.Metadata.UID},
		"type": kind, "reason": reason, "message": bounded(message), "count": 1,
		"firstTimestamp": stamp, "lastTimestamp": stamp,
		"source": map[string]any{"component": "lighter", "host": n.Metadata.Name},
	}, nil)
}

// bounded shortens a message to what the API server takes.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
}

// do sends a request, and decodes the answer into value, if that is not nil.
func (a *API) do(ctx context.Context, method, path, mediaType string, body, value any) error {
	err := a.send(ctx, method, path, mediaType, body, value)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

func (a *API) send(ctx context.Context, method, path, mediaType string, body, value any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, content)
	if err != nil {
		return err
	}
	token, err := os.ReadFile(a.token)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "lighter")
	if body != nil {
		req.Header.Set("Content-Type", mediaType)
	}
	res, err := a.http.Do(req)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // the caller names the request
		}
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		var status struct{ Message string }
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status.Message = http.StatusText(res.StatusCode)
		}
		return &Refused{res.StatusCode, status.Message}
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(text, value)
}
