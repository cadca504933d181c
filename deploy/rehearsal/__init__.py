"""The pods of the manifests, run as a cluster would run them, on one machine without a cluster.

`python -m deploy.rehearsal --help` says how. What is the manifests' own is taken from them: commands,
environment, volumes, users, probes, hooks, grace periods, numbers, strategies. What is a cluster's is played:

- a host is a network namespace, and so is each pod, which its host routes to; a bridge joins the hosts;
- a Service with an address is what kube-proxy makes of one in its iptables mode: each host sends a new
  connection to one of the endpoints, at random;
- NetworkPolicies are rules of the same kind, so that what they forget to allow does not work;
- names are entries of `/etc/hosts`, which each host brings up to date;
- an image is this checkout and its environment, read-only, with the `ENV` of the image's Dockerfile;
- kubelets, controllers and the scheduler are `kubelet`, `controllers` and `cluster` here.
"""
