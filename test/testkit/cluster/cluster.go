// Package cluster runs a Kubernetes cluster on a site: etcd and the control plane on the hub's side
// of the link, and a kubelet on the site's machine, which uses the machine's containerd. The
// programs are the real ones, which `test/setup kubernetes` builds.
//
// What differs from a usual cluster: no kube-proxy and no cluster network, so pods use the
// machine's network, or have one that leads nowhere; the service "kubernetes" is the API server's
// own address; cgroups are those of the site; and the kubelet trusts every client.
package cluster

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lighter/test/testkit/site"
	"lighter/test/testkit/workdir"
)

// Node is the name of the cluster's only node.
const Node = "machine"

const (
	serviceIP = "10.96.0.1" // of the service "kubernetes", the first address of serviceRange
	services  = "10.96.0.0/16"
	// startTimeout bounds the start of each program. Machines that build something else are slow.
	startTimeout = 5 * time.Minute
	day          = 24 * time.Hour
)

// Cluster is a running cluster.
type Cluster struct {
	site    *site.Site
	tools   string // directory of the programs
	dir     string
	plane   []*site.Service // in the order of their start
	kubelet *site.Service
	config  map[string]any // the kubelet's
}

// Start starts a cluster on a site whose containerd has CRI, and waits until its node is ready. The
// caller closes it before the site.
func Start(ctx context.Context, s *site.Site) (_ *Cluster, err error) {
	work, err := workdir.Path()
	if err != nil {
		return nil, err
	}
	c := &Cluster{site: s, tools: filepath.Join(work, site.Ours), dir: filepath.Join(s.Dir, "cluster")}
	if _, err := os.Stat(filepath.Join(c.tools, "kubelet")); err != nil {
		return nil, fmt.Errorf("find the programs of Kubernetes (test/setup kubernetes builds them): %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, err
	}
	if err := errors.Join(c.writeKeys(), c.writeCredentials(), c.connect(ctx)); err != nil {
		return nil, err
	}
	if err := c.startPlane(ctx); err != nil {
		return nil, err
	}
	c.config = c.kubeletConfig()
	return c, c.StartKubelet(ctx, nil)
}

// Close ends all programs, the kubelet first. Pods have to be removed before.
func (c *Cluster) Close() error {
	errs := []error{c.StopKubelet()}
	for i := len(c.plane) - 1; i >= 0; i-- {
		errs = append(errs, c.plane[i].Stop())
	}
	// The kubelet mounts its directory on itself, to share it.
	if err := unix.Unmount(c.path("kubelet"), unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }
func (c *Cluster) tool(name string) string { return filepath.Join(c.tools, name) }

// connect gives the API server's service its address, and the machine a route to it.
func (c *Cluster) connect(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "ip", "addr", "replace", serviceIP+"/32", "dev", "lo").CombinedOutput()
	if err != nil {
		return fmt.Errorf("add the address of the service: %w: %s", err, out)
	}
	_, err = c.site.Machine.Command(ctx, "ip", "route", "add", services, "via", site.HubIP)
	return err
}

// writeKeys writes a certificate that is its own authority for the API server, and a key for the
// tokens of service accounts.
func (c *Cluster) writeKeys() error {
	for _, name := range []string{"server", "accounts"} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
			0o600); err != nil {
			return err
		}
		template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-day), NotAfter: time.Now().Add(day), IsCA: true, BasicConstraintsValid: true,
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			DNSNames:    []string{"kubernetes", "localhost"},
			IPAddresses: []net.IP{net.ParseIP(site.HubIP), net.ParseIP(serviceIP), net.ParseIP("127.0.0.1")}}
		der, err = x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.path(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			0o644); err != nil {
			return err
		}
	}
	return nil
}

// User is a user without any permission, until a test gives it some.
const User = "user"

// writeCredentials writes the tokens of an administrator, of the kubelet and of User, and a
// kubeconfig for each. The token of a user is its name.
func (c *Cluster) writeCredentials() error {
	tokens := "admin,admin,admin,system:masters\nnode,system:node:" + Node + ",node,system:nodes\n" +
		User + "," + User + "," + User + "\n"
	errs := []error{os.WriteFile(c.path("tokens.csv"), []byte(tokens), 0o600)}
	for _, user := range []string{"admin", "node", User} {
		config := map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "site",
			"clusters": []any{map[string]any{"name": "site", "cluster": map[string]any{
				"server": "https://" + site.HubIP, "certificate-authority": c.path("server.crt")}}},
			"users": []any{map[string]any{"name": user, "user": map[string]any{"token": user}}},
			"contexts": []any{map[string]any{"name": "site",
				"context": map[string]any{"cluster": "site", "user": user}}}}
		errs = append(errs, writeJSON(c.path(user+".kubeconfig"), config))
	}
	return errors.Join(errs...)
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// startPlane starts etcd and the control plane.
func (c *Cluster) startPlane(ctx context.Context) error {
	admin, accounts := c.path("admin.kubeconfig"), c.path("accounts.key")
	serves := func() error { _, err := c.Kubectl(ctx, "", "get", "--raw", "/readyz"); return err }
	for _, p := range []struct {
		argv  []string
		ready func() error
	}{
		{[]string{"etcd", "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level", "warn",
			"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
			"--listen-peer-urls", "http://127.0.0.1:2380"}, dial("127.0.0.1:2379")},
		{[]string{"kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--bind-address", "0.0.0.0",
			"--secure-port", "443", "--advertise-address", site.HubIP, "--service-cluster-ip-range", services,
			"--tls-cert-file", c.path("server.crt"), "--tls-private-key-file", c.path("server.key"),
			"--cert-dir", c.dir, "--token-auth-file", c.path("tokens.csv"), "--authorization-mode", "Node,RBAC",
			"--service-account-issuer", "https://kubernetes.default.svc",
			"--service-account-key-file", c.path("accounts.crt"), "--service-account-signing-key-file", accounts,
			"--kubelet-preferred-address-types", "InternalIP", "--allow-privileged"}, serves},
		{[]string{"kube-controller-manager", "--kubeconfig", admin, "--leader-elect=false",
			"--bind-address", "127.0.0.1", "--service-account-private-key-file", accounts,
			"--root-ca-file", c.path("server.crt"), "--cert-dir", c.dir}, dial("127.0.0.1:10257")},
		{[]string{"kube-scheduler", "--kubeconfig", admin, "--leader-elect=false", "--bind-address", "127.0.0.1",
			"--cert-dir", c.dir}, dial("127.0.0.1:10259")},
	} {
		name := p.argv[0]
		p.argv[0] = c.tool(name)
		service, err := c.site.StartService(ctx, name, p.argv, startTimeout, p.ready)
		if err != nil {
			return err
		}
		c.plane = append(c.plane, service)
	}
	return nil
}

// dial returns a function that succeeds once a server listens on the address.
func dial(address string) func() error {
	return func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
}

// kubeletConfig returns the kubelet's configuration. Its cgroup is the site's, because the machine
// may have cgroups of version 1, and the site removes them. It evicts nothing, because the disk of
// the machine that runs the test may be nearly full.
func (c *Cluster) kubeletConfig() map[string]any {
	type object = map[string]any
	return object{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + c.site.Machine.ContainerdSocket(),
		"authentication":           object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}},
		"authorization":            object{"mode": "AlwaysAllow"},
		"cgroupDriver":             "cgroupfs", "cgroupsPerQOS": false, "cgroupRoot": "/" + c.site.Machine.Namespace(),
		"enforceNodeAllocatable": []string{}, "failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0,
		"podLogsDir": c.path("pod-logs"), "volumePluginDir": c.path("volume-plugins"), "resolvConf": "",
		"makeIPTablesUtilChains": false, "serializeImagePulls": false, "imageMinimumGCAge": "1s",
		"nodeStatusUpdateFrequency": "2s", "nodeStatusReportFrequency": "2s",
		"evictionHard": object{"memory.available": "1Mi", "nodefs.available": "0%",
			"imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99}
}

// StartKubelet starts the kubelet, with changes of its configuration that last, and waits until the
// node is ready.
func (c *Cluster) StartKubelet(ctx context.Context, changes map[string]any) error {
	for key, value := range changes {
		c.config[key] = value
	}
	config, root := c.path("kubelet.json"), c.path("kubelet")
	if err := writeJSON(config, c.config); err != nil {
		return err
	}
	argv := c.site.Machine.Inside(c.tool("kubelet"), "--config", config, "--kubeconfig", c.path("node.kubeconfig"),
		"--root-dir", root, "--cert-dir", filepath.Join(root, "pki"), "--hostname-override", Node,
		"--node-ip", site.MachineIP, "--v", "2")
	// The API has whole seconds. What an earlier kubelet has reported is older than started.
	started := time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(started))
	var err error
	c.kubelet, err = c.site.StartService(ctx, "kubelet", argv, startTimeout, func() error {
		out, err := c.Kubectl(ctx, "", "get", "node", Node, "-o",
			`jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime} {.message}{end}`)
		if err != nil {
			return err
		}
		fields := strings.SplitN(out, " ", 3)
		if len(fields) < 3 || fields[0] != "True" {
			return fmt.Errorf("the node is not ready: %q", out)
		}
		if at, err := time.Parse(time.RFC3339, fields[1]); err != nil || at.Before(started) {
			return fmt.Errorf("the kubelet has not reported yet: %q, %w", out, err)
		}
		return nil
	})
	return err
}

// StopKubelet stops the kubelet. Its pods keep running.
func (c *Cluster) StopKubelet() error {
	kubelet := c.kubelet
	c.kubelet = nil
	return kubelet.Stop()
}

// Kubectl runs kubectl as an administrator with the given standard input, and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.tool("kubectl"), append([]string{"--kubeconfig", c.path("admin.kubeconfig")},
		args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // kubectl keeps a cache there
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// Environment returns the environment in which User's kubectl, and what uses it, speak to the
// cluster.
func (c *Cluster) Environment() []string {
	return append(os.Environ(), "HOME="+c.dir, "KUBECONFIG="+c.path(User+".kubeconfig"),
		"PATH="+c.tools+":"+os.Getenv("PATH"))
}

// Dir returns the directory of all that the cluster keeps, and mounts.
func (c *Cluster) Dir() string { return c.dir }
