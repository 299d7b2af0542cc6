-- Services are looked up by namespace and name; by namespace alone, a namespace of many was read whole for each.
CREATE INDEX assignments_name ON assignments (namespace, name);
DROP INDEX assignments_namespace;
