package pullsecrets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

const (
	// requestTimeout bounds a list of pods and the request for a secret. The API server ends a
	// watch after watchTime; watchTimeout is when the client does.
	requestTimeout = 15 * time.Second
	watchTime      = 5 * time.Minute
	watchTimeout   = watchTime + time.Minute
	// Bounds of answers, in bytes: the pods of a node, one event of a watch, a secret. The API
	// server has objects of 1.5 MiB at most.
	maxList   = 256 << 20
	maxEvent  = 8 << 20
	maxSecret = 4 << 20
	// maxRefusal bounds what is read of an answer that is no success.
	maxRefusal = 64 << 10
)

// podObject is what is read of a pod.
type podObject struct {
	Metadata struct {
		UID       string    `json:"uid"`
		Namespace string    `json:"namespace"`
		Version   string    `json:"resourceVersion"`
		Created   time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Secrets    []struct{ Name string } `json:"imagePullSecrets"`
		Init       []container             `json:"initContainers"`
		Containers []container             `json:"containers"`
		Ephemeral  []container             `json:"ephemeralContainers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type container struct {
	Image string `json:"image"`
}

// pods lists the pods of a node. version is that of the list.
func (a *api) pods(ctx context.Context, node string) (pods []podObject, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The API server may answer from its cache, as it does to kubelets.
	path := "/api/v1/pods?resourceVersion=0&fieldSelector=" + url.QueryEscape("spec.nodeName="+node)
	body, err := a.get(ctx, path)
	if err != nil {
		return nil, "", fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	defer body.Close()
	var list struct {
		Metadata struct {
			Version string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []podObject `json:"items"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxList)).Decode(&list); err != nil {
		return nil, "", fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	return list.Items, list.Metadata.Version, nil
}

// watchPods passes changes of a node's pods since a version to change. When the API server ends the
// watch, it returns the version from which the next one goes on.
func (a *api) watchPods(ctx context.Context, node, version string, change func(p podObject, isGone bool)) (
	string, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	path := fmt.Sprintf("/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%s"+
		"&fieldSelector=%s", int(watchTime.Seconds()), url.QueryEscape(version),
		url.QueryEscape("spec.nodeName="+node))
	body, err := a.get(ctx, path)
	if err != nil {
		return "", fmt.Errorf("watch the pods of node %s: %w", node, err)
	}
	defer body.Close()
	bounded := &io.LimitedReader{R: body}
	for events := json.NewDecoder(bounded); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		bounded.N = maxEvent
		err := events.Decode(&event)
		if errors.Is(err, io.EOF) && bounded.N > 0 {
			return version, nil
		}
		var p podObject
		if err == nil && event.Type != "ERROR" {
			err = json.Unmarshal(event.Object, &p)
		}
		if err != nil {
			return "", fmt.Errorf("watch the pods of node %s: %w", node, err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED", "DELETED":
			change(p, event.Type == "DELETED")
		case "BOOKMARK":
		default: // the version is too old, for example
			return "", fmt.Errorf("watch the pods of node %s: the API server has ended it: %s", node,
				messageOf(event.Object))
		}
		version = p.Metadata.Version
	}
}

// secret gets a secret with logins, as Docker's config.json. It is nil if the secret has none, or
// does not exist.
func (a *api) secret(ctx context.Context, name secretName) (config []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := a.get(ctx, "/api/v1/namespaces/"+url.PathEscape(name.namespace)+"/secrets/"+url.PathEscape(name.name))
	var refused *refusedError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var s struct {
		Type string            `json:"type"`
		Data map[string][]byte `json:"data"`
	}
	if json.NewDecoder(io.LimitReader(body, maxSecret)).Decode(&s) != nil { // its error may quote the secret
		return nil, errors.New("the answer is no secret in JSON")
	}
	switch s.Type {
	case "kubernetes.io/dockerconfigjson":
		return s.Data[".dockerconfigjson"], nil
	case "kubernetes.io/dockercfg":
		return bytes.Join([][]byte{[]byte(`{"auths":`), s.Data[".dockercfg"], []byte("}")}, nil), nil
	}
	return nil, nil
}

// refusedError is an answer of the API server that is no success.
type refusedError struct {
	code    int
	message string
}

func (e *refusedError) Error() string { return fmt.Sprintf("status %d: %s", e.code, e.message) }

// get sends a request, and returns the body of the answer. The caller closes it.
func (a *api) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return nil, err
	}
	token, err := a.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "lighter")
	res, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	return nil, &refusedError{res.StatusCode, messageOf(text)}
}

// messageOf returns the message of a status of the API server.
func messageOf(text []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		return "without a message"
	}
	return status.Message
}
