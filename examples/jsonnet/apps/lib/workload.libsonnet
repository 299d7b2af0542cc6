{
  local labels(name) = { app: name },

  deployment(name, image, replicas):: {
    apiVersion: 'apps/v1',
    kind: 'Deployment',
    metadata: { name: name, labels: labels(name) },
    spec: {
      replicas: replicas,
      selector: { matchLabels: labels(name) },
      template: {
        metadata: { labels: labels(name) },
        spec: { containers: [{ name: name, image: image, ports: [{ name: 'http', containerPort: 80 }] }] },
      },
    },
  },

  service(name):: {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: name, labels: labels(name) },
    spec: { selector: labels(name), ports: [{ name: 'http', port: 80, targetPort: 'http' }] },
  },
}
