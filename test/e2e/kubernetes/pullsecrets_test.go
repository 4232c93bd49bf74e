//go:build kubernetes

package kubernetes

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"lighter/node/pullsecrets"
	"lighter/node/report"
	"lighter/test/testkit/cluster"
	"lighter/test/testkit/distribution"
	"lighter/test/testkit/images"
	"lighter/test/testkit/pods"
	"lighter/test/testkit/site"
)

// secretOf returns a pull secret of a registry.
func secretOf(name, host, user, password string) object {
	login := fmt.Sprintf(`{"auths":{%q:{"username":%q,"password":%q}}}`, host, user, password)
	return object{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
		"metadata": object{"name": name},
		"data":     object{".dockerconfigjson": base64.StdEncoding.EncodeToString([]byte(login))}}
}

// The kubelet's kubeconfig is enough for the pull secrets of a node's pods, also those that
// come from a service account. It gets no other secret.
func TestPullSecrets(t *testing.T) {
	s := startSite(t, site.Options{Config: config(t)})
	e := startCluster(t, s)
	secret := func(name, password string) object { return secretOf(name, "registry.test", "u", password) }
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

// A private image starts from its registry if the pod that uses it has a pull secret, and the node
// a kubeconfig. Without one, the kubelet alone has the login, and the image is pulled as usual.
// After a restart of the node, what is not cached is read with the secret, too.
func TestPrivateImage(t *testing.T) {
	s := startSite(t, site.Options{Config: config(t)})
	e := startCluster(t, s)
	host := site.HubIP + ":5001"
	distribution.StartAt(t, host, "", distribution.Auth(t))
	// As for the site's registry, containerd reaches this one without TLS.
	hosts := filepath.Join(filepath.Dir(s.Machine.ContainerdConfig()), "hosts", host)
	if err := errors.Join(os.MkdirAll(hosts, 0o755), os.WriteFile(filepath.Join(hosts, "hosts.toml"),
		fmt.Appendf(nil, "server = %q\n", "http://"+host), 0o600)); err != nil {
		t.Fatal(err)
	}
	ref := host + "/private/python:1"
	node := filepath.Join(t.TempDir(), "node.toml")
	const table = "attached_keys = [%q]\nsources = [\"attached\"]\n%%s[[registry]]\nhost = %q\nprivate = true\n" +
		"plain_http = true\n"
	text := fmt.Sprintf(table, pushPrivate(t, host, ref), host)
	start := func(more string) {
		t.Helper()
		s.Machine.KillNode()
		err := os.WriteFile(node, fmt.Appendf(nil, text, more), 0o600)
		if err = errors.Join(err, s.Machine.StartNode(t.Context(), "--config", node)); err != nil {
			t.Fatal(err)
		}
	}
	e.apply(t, secretOf("private", host, distribution.User, distribution.Password))
	run := func(script string) {
		t.Helper()
		s := spec("Never", script)
		s["imagePullSecrets"] = []object{{"name": "private"}}
		s["containers"].([]object)[0]["image"] = ref
		e.apply(t, pod("private", s))
		e.awaitPod(t, "private", "Succeeded")
		e.kubectl(t, "", "delete", "pod/private")
		e.noSandbox(t)
	}
	start("")
	run("true")
	if i := e.image(t, ref); i.Lazy {
		t.Errorf("without a kubeconfig: %+v, want that it is not lazy", i)
	}
	err := s.Machine.CRI(t.Context(), "RemoveImage", object{"image": object{"image": ref}}, &struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := fmt.Sprintf("kubeconfig = %q\nkubernetes_node = %q\n", filepath.Join(e.c.Dir(), "node.kubeconfig"),
		cluster.Node)
	start(kubeconfig)
	defer start("") // the API server waits for those that watch pods
	e.received(t, images.Size(t, "python")/2, func() { run("cd / && " + pods.CheckPackage) })
	if i := e.image(t, ref); !i.Lazy || i.Source.Source != "attached" {
		t.Errorf("with a kubeconfig: %+v, want that it comes from the attached index", i)
	}
	start(kubeconfig)
	run("cd /usr && find . -xdev -type f -print0 | xargs -0 cat | wc -c")
}

// image returns the status of an image.
func (e env) image(t *testing.T, ref string) report.ImageStatus {
	t.Helper()
	for _, i := range e.status(t).Images {
		if i.Image == ref {
			return i
		}
	}
	t.Fatalf("images %+v, want %s", e.status(t).Images, ref)
	return report.ImageStatus{}
}

// pushPrivate pushes the image python to a registry that wants a login, and attaches an index to
// it. It returns the index's key.
func pushPrivate(t *testing.T, host, ref string) (key string) {
	t.Helper()
	image, err := images.Open(images.Dir("python"))
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err == nil {
		err = remote.Write(to, image, remote.WithAuth(&authn.Basic{Username: distribution.User,
			Password: distribution.Password}))
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	login := base64.StdEncoding.EncodeToString([]byte(distribution.User + ":" + distribution.Password))
	text := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, login)
	program, binaryErr := site.Binary()
	if err := errors.Join(binaryErr, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "attach", "--plain-http", "--make-key", "--key",
		filepath.Join(dir, "key.pem"), ref)
	cmd.Env, cmd.Stderr = append(os.Environ(), "DOCKER_CONFIG="+dir), t.Output()
	out, err := cmd.Output()
	_, key, found := strings.Cut(string(out), "signed by ")
	if err != nil || !found {
		t.Fatalf("lighter attach: %v, %s", err, out)
	}
	return strings.TrimSpace(key)
}
