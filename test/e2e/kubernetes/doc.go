// Package kubernetes tests Lighter under a real Kubernetes: a control plane, a kubelet, and
// containerd with the node as its snapshotter. `make kubernetes` runs it.
package kubernetes
