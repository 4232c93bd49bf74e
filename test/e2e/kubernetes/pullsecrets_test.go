//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/base64"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"lighter/node/pullsecrets"
	"lighter/test/testkit/cluster"
	"lighter/test/testkit/site"
)

// The kubelet's kubeconfig is enough for the pull secrets of a node's pods, also those that
// come from a service account. It gets no other secret.
func TestPullSecrets(t *testing.T) {
	s := startSite(t, site.Options{Config: config(t)})
	e := startCluster(t, s)
	secret := func(name, password string) object {
		login := `{"auths":{"registry.test":{"username":"u","password":"` + password + `"}}}`
		return object{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
			"metadata": object{"name": name},
			"data":     object{".dockerconfigjson": base64.StdEncoding.EncodeToString([]byte(login))}}
	}
	image := func(name string, more object) object {
		spec := object{"nodeName": cluster.Node, "automountServiceAccountToken": false, "restartPolicy": "Never",
			"containers": []object{{"name": "c", "image": "registry.test/" + name + ":1"}}}
		for key, value := range more {
			spec[key] = value
		}
		return pod(name, spec)
	}
	e.apply(t, secret("named", "s3cret-named"), secret("ours", "s3cret-ours"), secret("unused", "s3cret-unused"),
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "team"},
			"imagePullSecrets": []object{{"name": "ours"}}},
		image("first", object{"imagePullSecrets": []object{{"name": "named"}}}))
	log := &strings.Builder{}
	secrets := pullsecrets.New(filepath.Join(e.c.Dir(), "node.kubeconfig"), cluster.Node,
		slog.New(slog.NewTextHandler(log, nil)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); secrets.Run(ctx) }()
	defer func() { stop(); <-ended }()
	has := func(repository, want string) bool {
		var all string
		for _, text := range secrets.Configs(t.Context(), repository, false) {
			all += string(text)
		}
		if strings.Contains(all, "unused") {
			t.Errorf("%s has a secret that no pod names", repository)
		}
		return want == "" && all == "" || want != "" && strings.Contains(all, want)
	}
	await(t, "the secret of a pod", func() bool { return has("registry.test/first", "s3cret-named") })
	e.apply(t, image("second", object{"serviceAccountName": "team"}))
	await(t, "the secret of a service account", func() bool { return has("registry.test/second", "s3cret-ours") })
	e.apply(t, secret("named", "s3cret-changed"))
	await(t, "a changed secret", func() bool { return has("registry.test/first", "s3cret-changed") })
	e.kubectl(t, "", "delete", "pod", "first", "--force", "--grace-period=0")
	await(t, "the end of a pod", func() bool { return has("registry.test/first", "") })
	if out, err := e.c.Kubectl(t.Context(), "", "--token=node", "get", "secret", "unused"); err == nil {
		t.Errorf("the kubelet's login gets a secret that no pod names: %s", out)
	}
	stop()
	<-ended
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has a secret: %s", log)
	}
}
