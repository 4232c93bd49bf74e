// Package pullsecrets has the logins that the pods of one Kubernetes node name for their images
// (imagePullSecrets). It watches these pods, and gets the secrets that they name when a registry
// wants a login.
//
// It promises that a secret is used only for the repositories of the images of a pod that names it,
// and only while that pod is on this node. Secrets are in memory only, and in no log and no error.
// Without the kubeconfig or the API server nothing fails: what is known stays in use.
//
// It sends three kinds of requests: list and watch the pods of this node, and get a secret. That is
// what Kubernetes allows each kubelet for its own node, so the kubelet's kubeconfig is enough.
//
// Service accounts are not read: the API server copies their imagePullSecrets to new pods.
package pullsecrets

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"lighter/registries"
	"lighter/sleep"
)

const (
	// maxPods bounds the pods of a node, and maxNames the secrets and the images of a pod.
	maxPods  = 4096
	maxNames = 64
	// secretLife is how long a secret is used before it is got again. After a refusal it is got
	// again if it is older than secretYoung.
	secretLife  = time.Minute
	secretYoung = 10 * time.Second
)

// watchBackoff has the pauses after the API server has failed.
var watchBackoff = sleep.Backoff{First: time.Second, Most: time.Minute, Jitter: 0.5}

// Secrets are the pull secrets of one node's pods. It is safe for concurrent use.
type Secrets struct {
	kubeconfig string
	node       string
	log        *slog.Logger

	mu      sync.Mutex     // guards the following
	api     *api           // the last one that had a list of pods
	pods    map[string]pod // by UID
	secrets map[secretName]secret
}

// pod is what is kept of a pod.
type pod struct {
	created      time.Time
	secrets      []secretName
	repositories []string // of its images
}

type secretName struct{ namespace, name string }

// secret is a secret that was got.
type secret struct {
	config []byte // as Docker's config.json; nil: it has none
	at     time.Time
}

// New returns the pull secrets of the pods of a node. node is its name; if it is empty, it is the
// one in the kubeconfig's client certificate (system:node:NAME). There are none before Run.
func New(kubeconfig, node string, log *slog.Logger) *Secrets {
	return &Secrets{kubeconfig: kubeconfig, node: node, log: log, pods: map[string]pod{},
		secrets: map[secretName]secret{}}
}

// Run watches the pods until ctx ends.
func (s *Secrets) Run(ctx context.Context) {
	for failures := 0; ; {
		began := time.Now()
		err := s.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; time.Since(began) > watchBackoff.Most {
			failures = 1
		}
		if failures == 1 || failures%10 == 0 {
			s.log.Warn("cannot watch the pods of this node: the pull secrets of new pods are not known", "err", err)
		}
		if !sleep.For(ctx, watchBackoff.After(failures)) {
			return
		}
	}
}

// watch lists the pods, and follows their changes until the API server ends that or fails. It reads
// the kubeconfig first: the kubelet makes it when it joins the cluster.
func (s *Secrets) watch(ctx context.Context) error {
	a, err := openAPI(s.kubeconfig)
	if err != nil {
		return err
	}
	defer a.http.CloseIdleConnections()
	node := cmp.Or(s.node, a.nodeName())
	if node == "" {
		return errors.New("the kubeconfig " + s.kubeconfig + " is not that of a kubelet with a client certificate: " +
			"name this node (kubernetes_node)")
	}
	list, version, err := a.pods(ctx, node)
	if err != nil {
		return err
	}
	pods := map[string]pod{}
	for _, p := range list[:min(len(list), maxPods)] {
		if kept, ok := keptOf(p); ok {
			pods[p.Metadata.UID] = kept
		}
	}
	s.mu.Lock()
	s.api, s.pods = a, pods
	s.forget()
	s.mu.Unlock()
	s.log.Info("pull secrets of the pods of this node are used", "node", node, "pods", len(pods))
	for {
		if version, err = a.watchPods(ctx, node, version, s.change); err != nil {
			return err
		}
		if !sleep.For(ctx, time.Second) { // a server that ends each watch at once is not asked all the time
			return context.Cause(ctx)
		}
	}
}

// change notes a change of a pod.
func (s *Secrets) change(p podObject, isGone bool) {
	kept, ok := keptOf(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if isGone || !ok {
		delete(s.pods, p.Metadata.UID)
		s.forget()
	} else if _, known := s.pods[p.Metadata.UID]; known || len(s.pods) < maxPods {
		s.pods[p.Metadata.UID] = kept
	}
}

// keptOf returns what is kept of a pod. ok is false if the pod has ended, or names no secrets.
func keptOf(p podObject) (kept pod, ok bool) {
	kept.created = p.Metadata.Created
	for _, ref := range p.Spec.Secrets[:min(len(p.Spec.Secrets), maxNames)] {
		kept.secrets = append(kept.secrets, secretName{p.Metadata.Namespace, ref.Name})
	}
	images := slices.Concat(p.Spec.Init, p.Spec.Containers, p.Spec.Ephemeral)
	for _, c := range images[:min(len(images), maxNames)] {
		if repository, err := registries.RepositoryOfImage(c.Image); err == nil {
			kept.repositories = append(kept.repositories, repository)
		}
	}
	return kept, len(kept.secrets) > 0 && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed"
}

// forget forgets the secrets that no pod names. mu is held.
func (s *Secrets) forget() {
	used := map[secretName]bool{}
	for _, p := range s.pods {
		for _, name := range p.secrets {
			used[name] = true
		}
	}
	for name := range s.secrets {
		if !used[name] {
			delete(s.secrets, name)
		}
	}
}

// Configs returns the contents of the secrets of the pods that have an image of a repository, those
// of the youngest pod first. It implements registries.Configs.
func (s *Secrets) Configs(ctx context.Context, repository string, afresh bool) (texts [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout) // for all of them
	defer cancel()
	for _, name := range s.namesFor(repository) {
		if config := s.get(ctx, name, afresh); config != nil {
			texts = append(texts, config)
		}
	}
	return texts
}

// namesFor returns the names of secrets for a repository: maxNames at most.
func (s *Secrets) namesFor(repository string) (names []secretName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []pod
	for _, p := range s.pods {
		if slices.Contains(p.repositories, repository) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b pod) int { return b.created.Compare(a.created) })
	for _, p := range pods {
		for _, name := range p.secrets {
			if len(names) < maxNames && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// get returns the content of a secret, or nil if it has none. If it cannot be got, the last content
// counts.
func (s *Secrets) get(ctx context.Context, name secretName, afresh bool) []byte {
	s.mu.Lock()
	a, known := s.api, s.secrets[name]
	s.mu.Unlock()
	age := time.Since(known.at)
	if age < secretLife && !(afresh && age > secretYoung) {
		return known.config
	}
	config, err := a.secret(ctx, name)
	at := time.Now()
	if err != nil {
		s.log.Warn("cannot get a pull secret", "namespace", name.namespace, "secret", name.name, "err", err)
		config, at = known.config, at.Add(secretYoung-secretLife) // try again after secretYoung
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[name] = secret{config, at}
	s.forget() // its pods may have gone meanwhile
	return config
}
