local workload = import '../lib/workload.libsonnet';
local parameters = std.extVar('parameters');

local name = parameters.service.name;
local settings = parameters.configuration;

[
  workload.deployment(name, settings.image, std.parseInt(settings.replicas)),
  workload.service(name),
]
