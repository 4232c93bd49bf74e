package pullsecrets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lighter/test/testkit/eventually"
)

// configs returns what the secrets have for a repository, as one text.
func configs(t *testing.T, s *Secrets, repository string, afresh bool) string {
	t.Helper()
	var all []string
	for _, text := range s.Configs(t.Context(), repository, afresh) {
		all = append(all, string(text))
	}
	return strings.Join(all, "\n")
}

// age makes all secrets older.
func (s *Secrets) age(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, known := range s.secrets {
		known.at = known.at.Add(-by)
		s.secrets[name] = known
	}
}

// A secret is used for the images of the pods on this node that name it, from their arrival to
// their end. It is in no log.
func TestSecretsOfPods(t *testing.T) {
	c := startAPIServer(t)
	c.putLogin("team/registry", "registry.test", "s3cret-1")
	c.putLogin("other/registry", "registry.test", "s3cret-2")
	c.putSecret("team/opaque", "Opaque", ".dockerconfigjson", `{"auths":{"registry.test":{"auth":"s3cret-3"}}}`)
	c.putSecret("team/old", "kubernetes.io/dockercfg", ".dockercfg", `{"old.test":{"auth":"s3cret-4"}}`)
	c.put("1", "team", "registry.test/a:1", "registry", "opaque", "none")
	s, log := run(t, c.kubeconfig(t), "")
	eventually.Holds(t, "the listed pod's secret", func() bool { return configs(t, s, "registry.test/a", false) != "" })
	got := configs(t, s, "registry.test/a", false)
	if !strings.Contains(got, "s3cret-1") || strings.Contains(got, "s3cret-2") || strings.Contains(got, "s3cret-3") {
		t.Errorf("got %s, want the secret with logins that the pod names", got)
	}
	if got := configs(t, s, "registry.test/b", false); got != "" {
		t.Errorf("a repository that no pod uses: %s", got)
	}
	c.put("2", "other", "registry.test/b@sha256:"+strings.Repeat("ab", 32), "registry")
	eventually.Holds(t, "a new pod's secret", func() bool {
		return strings.Contains(configs(t, s, "registry.test/b", false), "s3cret-2")
	})
	c.put("3", "team", "old.test/c", "old")
	eventually.Holds(t, "a secret of the old type", func() bool {
		return configs(t, s, "old.test/c", false) == `{"auths":{"old.test":{"auth":"s3cret-4"}}}`
	})
	c.put("4", "team", "nginx", "registry")
	eventually.Holds(t, "an image of Docker Hub", func() bool {
		return configs(t, s, "docker.io/library/nginx", false) != ""
	})
	c.put("2", "other", "")
	eventually.Holds(t, "the end of a pod", func() bool { return configs(t, s, "registry.test/b", false) == "" })
	s.mu.Lock()
	if _, kept := s.secrets[secretName{"other", "registry"}]; kept || len(s.pods) != 3 {
		t.Errorf("%d pods; the secret of a pod that has gone is kept: %t", len(s.pods), kept)
	}
	s.mu.Unlock()
	if text := log.String(); strings.Contains(text, "s3cret") {
		t.Errorf("the log has a secret: %s", text)
	}
}

// A secret is got again after a minute, and after a refusal if it is not young.
func TestChangedSecret(t *testing.T) {
	c := startAPIServer(t)
	c.putLogin("team/registry", "registry.test", "first")
	c.put("1", "team", "registry.test/a:1", "registry")
	s, _ := run(t, c.kubeconfig(t), "")
	eventually.Holds(t, "the secret", func() bool { return configs(t, s, "registry.test/a", false) != "" })
	c.putLogin("team/registry", "registry.test", "second")
	for _, step := range []struct {
		age    time.Duration
		afresh bool
		want   string
	}{{0, false, "first"}, {0, true, "first"}, {secretYoung, false, "first"}, {0, true, "second"}} {
		s.age(step.age)
		if got := configs(t, s, "registry.test/a", step.afresh); !strings.Contains(got, step.want) {
			t.Errorf("%+v: got %s", step, got)
		}
	}
	c.putLogin("team/registry", "registry.test", "third")
	s.age(secretLife)
	if got := configs(t, s, "registry.test/a", false); !strings.Contains(got, "third") {
		t.Errorf("after a minute: got %s", got)
	}
}

// While the API server is away, what is known is used. Afterwards the pods are listed again, and
// also if the API server says that the version is too old.
func TestAPIServerIsAway(t *testing.T) {
	c := startAPIServer(t)
	c.putLogin("team/registry", "registry.test", "s3cret")
	c.put("1", "team", "registry.test/a:1", "registry")
	s, log := run(t, c.kubeconfig(t), "")
	eventually.Holds(t, "the secret", func() bool { return configs(t, s, "registry.test/a", false) != "" })
	c.with(func() { c.isDown = true })
	s.age(time.Hour)
	if got := configs(t, s, "registry.test/a", true); !strings.Contains(got, "s3cret") {
		t.Errorf("without the API server: got %q, want the last secret", got)
	}
	eventually.Holds(t, "the failure in the log", func() bool { return strings.Contains(log.String(), "cannot watch") })
	c.with(func() { c.isDown, c.expired = false, true })
	c.put("2", "team", "registry.test/b:1", "registry")
	eventually.Holds(t, "a pod that came meanwhile", func() bool {
		return configs(t, s, "registry.test/b", false) != ""
	})
	if strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has a secret: %s", log)
	}
}

// The node runs before the kubelet has made its kubeconfig, and with one that is not a kubelet's if
// the node's name is configured.
func TestKubeconfigComesLater(t *testing.T) {
	c := startAPIServer(t)
	c.putLogin("team/registry", "registry.test", "s3cret")
	c.put("1", "team", "registry.test/a:1", "registry")
	made := c.kubeconfig(t)
	later := filepath.Join(filepath.Dir(made), "later.conf")
	s, log := run(t, later, nodeName)
	eventually.Holds(t, "the missing file in the log", func() bool {
		return strings.Contains(log.String(), "later.conf")
	})
	if got := configs(t, s, "registry.test/a", false); got != "" {
		t.Errorf("without a kubeconfig: %s", got)
	}
	if err := os.Rename(made, later); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the secret", func() bool { return configs(t, s, "registry.test/a", false) != "" })
}

// A kubeconfig that cannot be used is an error that says why, and quotes nothing.
func TestWrongKubeconfigs(t *testing.T) {
	good := func(user string) string {
		return "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n" +
			"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: " + user + "}]\n"
	}
	cluster := func(before, after string) string { return strings.Replace(good("{}"), before, after, 1) }
	for text, want := range map[string]string{
		"\ts3cret":               "is no YAML",
		"a: b":                   `no context ""`,
		good("{token: s3cret}"):  "",
		cluster("https", "http"): "no https",
		cluster("server:", "insecure-skip-tls-verify: true, server:"):     "name the authority",
		cluster("server:", "certificate-authority-data: s3cret, server:"): "certificate-authority:",
		good("{exec: {command: s3cret}}"):                                 "exec, which is not supported",
		good("{client-certificate-data: s3cret}"):                         "client-certificate:",
		good("{client-certificate: missing.pem}"):                         "missing.pem",
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := openAPI(path)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	s := New(filepath.Join(t.TempDir(), "x"), "", nil)
	if err := os.WriteFile(s.kubeconfig, []byte(good("{token: s3cret}")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.watch(t.Context()); err == nil || !strings.Contains(err.Error(), "kubernetes_node") {
		t.Errorf("a kubeconfig without a node: %v", err)
	}
}
